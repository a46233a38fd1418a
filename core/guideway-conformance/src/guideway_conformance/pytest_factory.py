"""Conformance in a plugin's own tests, three lines::

    from guideway_conformance import conformance

    TestConformance = conformance("grammar.mine")

Each obligation is a test. The class inherits nothing, so a test can be neither overridden nor forgotten.
`guideway_conformance.pytest_plugin` is pytest's side of these tests.
"""

from __future__ import annotations

import atexit
import datetime
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from guideway.api import CONTRACT

from guideway_conformance.formats.rules import rule_of
from guideway_conformance.isolation import HOST_VARIABLE, CannotLoad, Host
from guideway_conformance.known_failures import Preferences
from guideway_conformance.pytest_plugin import LISTED, OPEN, RESULT, TESTED
from guideway_conformance.registry import TIERS, Mode, Obligation, Tier
from guideway_conformance.report import Report, by_tier
from guideway_conformance.runner import require_contract, require_extra
from guideway_conformance.subjects import Settings
from guideway_conformance.target import Target

__all__ = ["conformance"]


def conformance(
    plugin: str | type, *, contract: str = CONTRACT, up_to: Tier = TIERS[-1], settings: Settings | None = None
) -> type:
    """Return a test class for `plugin`: an installed one by name, or a bare class at the top level of its module.

    `settings` default to the ``conformance.toml`` in the test file's folder or above it. Raises `PluginError` if no
    such plugin is installed, `InvalidConfiguration` if there are no checks for `contract`. A plugin that cannot be
    loaded is one failing test.
    """
    if HOST_VARIABLE in os.environ:
        return object
    require_extra()
    caller = sys._getframe(1).f_code.co_filename  # `inspect.stack` would read the source of all frames
    preferences = Preferences.near(Path(caller).parent)
    target = _target(plugin, settings)
    if settings is None:
        if isinstance(plugin, type):
            preferences.require_class_name(plugin, target.component)
        target = _target(plugin, preferences.settings(target.component))
        TESTED.add(target.component)
        LISTED.update(preferences.strangers(target.component))
    preferences = preferences.concerning(target.component)
    require_contract(target.kind, contract)
    try:
        host = Host(target)
    except CannotLoad as error:
        return _cannot_load(f"{target.name} cannot be loaded: {error}")
    OPEN.append(host.close)  # pytest calls it at its end; any other process that imports this file, at its exit
    atexit.register(host.close)
    report = Report.begun(target, host.declared, host.traits, contract=contract, up_to=up_to)
    preferences.require_owed(itertools.chain(*by_tier(target.kind, report.declared, report.traits, contract).values()))
    planned = [(obligation.check, obligation.mode) for obligation in report.planned]

    class Conformance:
        """One test per obligation."""

        guideway_conformance = report
        """The report that `pytest_plugin` completes."""

        @pytest.mark.parametrize(
            ("check", "mode"), planned, ids=[f"{check.partition('.')[2]}-{mode}" for check, mode in planned]
        )
        def test(self, check: str, mode: Mode, record_property: Any) -> None:
            (result,) = preferences.applied(
                host.run([Obligation(check, mode)]), datetime.datetime.now(datetime.UTC).date()
            )
            record_property(RESULT, [check, mode, result.outcome, result.detail, result.seconds])
            if result.outcome in ("known_failure", "not_run"):
                pytest.xfail(result.detail)
            if result.outcome != "pass":
                pytest.fail(f"{rule_of(result.obligation)}\n{result.outcome}: {result.detail}", pytrace=False)

    return Conformance


def _target(plugin: str | type, settings: Settings | None) -> Target:
    return Target.installed(plugin, settings) if isinstance(plugin, str) else Target.of_class(plugin, settings)


def _cannot_load(message: str) -> type:
    class Conformance:
        """The plugin cannot be loaded."""

        def test_loads(self) -> None:
            pytest.fail(message, pytrace=False)

    return Conformance
