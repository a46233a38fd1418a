"""Conformance in a plugin's own tests, three lines::

    from guideway.conformance import conformance

    TestConformance = conformance("grammar.mine")

Each obligation is a test. Nothing is inherited, so nothing can be overridden or forgotten.
"""

from __future__ import annotations

import atexit
import datetime
import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from guideway.conformance.isolation import HOST_VARIABLE, CannotLoad, Host
from guideway.conformance.known_failures import Preferences
from guideway.conformance.registry import TIERS, Mode, Obligation, Tier, plan
from guideway.conformance.subjects import Settings
from guideway.conformance.target import Target

__all__ = ["conformance"]


def conformance(
    plugin: str | type, *, contract: str = "1.0", up_to: Tier = TIERS[-1], settings: Settings | None = None
) -> type:
    """A test class for `plugin`: an installed one by name, or a bare class at the top level of its module.

    `settings` default to those of a ``conformance.toml`` beside the test file or above it. Raises `PluginError` if no
    such plugin is installed. A plugin that cannot be loaded is one failing test.
    """
    if HOST_VARIABLE in os.environ:
        return object
    caller = inspect.stack()[1]
    preferences = Preferences.near(Path(caller.filename).parent)
    target = _target(plugin, settings)
    if settings is None:
        target = _target(plugin, preferences.settings(target.name.rpartition("/")[2]))
    try:
        host = Host(target)
    except CannotLoad as error:
        return _cannot_load(str(error))
    atexit.register(host.close)
    planned = plan(target.kind, host.declared, host.traits, contract=contract, up_to=up_to)
    ids = [f"{o.check.partition('.')[2]}-{o.mode}" for o in planned]

    class Conformance:
        """One test per obligation."""

        @pytest.mark.parametrize(("check", "mode"), [(o.check, o.mode) for o in planned], ids=ids)
        def test(self, check: str, mode: Mode, record_property: Any) -> None:
            record_property("guideway_conformance", [target.name, len(planned), check])
            (result,) = preferences.applied(
                host.run([Obligation(check, mode)]), datetime.datetime.now(datetime.UTC).date()
            )
            if result.outcome == "known_failure":
                pytest.xfail(result.detail)
            if result.outcome != "pass":
                pytest.fail(f"{result.outcome}: {result.detail}", pytrace=False)

    return Conformance


def _target(plugin: str | type, settings: Settings | None) -> Target:
    return Target.installed(plugin, settings) if isinstance(plugin, str) else Target.of_class(plugin, settings)


def _cannot_load(message: str) -> type:
    class Conformance:
        """The plugin cannot be loaded."""

        def test_loads(self) -> None:
            pytest.fail(message, pytrace=False)

    return Conformance
