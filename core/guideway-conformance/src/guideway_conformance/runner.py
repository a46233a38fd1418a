"""A conformance run from end to end: plan, perform in isolation, report."""

from __future__ import annotations

import datetime
import itertools
import os
import re
from collections.abc import Callable
from importlib.util import find_spec

from guideway.api import CONTRACT
from guideway.errors import InvalidConfiguration

from guideway_conformance.isolation import MEMORY, Host
from guideway_conformance.known_failures import Preferences
from guideway_conformance.outcomes import Result
from guideway_conformance.registry import TIERS, Obligation, Tier, checks
from guideway_conformance.report import INTERRUPTED, Report, by_tier
from guideway_conformance.target import Target

__all__ = ["processors", "require_contract", "require_extra", "run"]


def run(
    target: Target,
    *,
    contract: str = CONTRACT,
    up_to: Tier = TIERS[-1],
    preferences: Preferences | None = None,
    jobs: int | None = None,
    memory: int = MEMORY,
    timeout_factor: float = 1.0,
    on_plan: Callable[[Report], None] = lambda _: None,
    on_result: Callable[[Result], None] = lambda _: None,
) -> Report:
    """Test `target` against `contract`, tiers up to `up_to`, and report. `on_plan` is called with the report before the
    run, `on_result` with each result when it is known.

    If the smoke tier fails, the rest is not performed, because it would fail a hundred times for the same reason. If
    the run is interrupted (KeyboardInterrupt), the remaining obligations are errors in the report, and the run
    incomplete. Raises `CannotLoad` if the plugin cannot be imported, `InvalidConfiguration` if there are no checks for
    `contract`.
    """
    require_extra()
    require_contract(target.kind, contract)
    preferences = (preferences or Preferences()).concerning(target.component)
    today = datetime.datetime.now(datetime.UTC).date()
    jobs = jobs or processors()
    found: dict[Obligation, Result] = {}
    with Host(target, memory=memory) as host:
        report = Report.begun(target, host.declared, host.traits, contract=contract, up_to=up_to)
        on_plan(report)
        tiers = by_tier(target.kind, report.declared, report.traits, contract)
        preferences.require_owed(itertools.chain(*tiers.values()))
        smoke = tiers["smoke"]
        rest = [obligation for obligation in report.planned if obligation not in smoke]
        try:
            for part in (smoke, rest):
                if any(result.outcome in ("fail", "error") for result in found.values()):
                    break
                for result in host.run(part, jobs=jobs, timeout_factor=timeout_factor):
                    (marked,) = preferences.applied([result], today)
                    found[marked.obligation] = marked
                    on_result(marked)
        except KeyboardInterrupt:
            return report.with_results(_complete(report, found, INTERRUPTED))
    return report.with_results(_complete(report, found, "not performed, because a smoke check failed"))


def processors() -> int:
    """Return how many processors this process may use; in a container, they may be few of the existing ones."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _complete(report: Report, found: dict[Obligation, Result], why: str) -> list[Result]:
    """Return all results, with an error because of `why` for each that is missing in `found`."""
    return [found.get(obligation, Result(obligation, "error", why)) for obligation in report.planned]


def require_extra() -> None:
    """Raise `InvalidConfiguration` if the packages for the checks are not installed."""
    if find_spec("hypothesis") is None:
        raise InvalidConfiguration(
            "the conformance suite needs hypothesis, which is not installed here: pip install 'guideway[conformance]'",
            field="conformance",
        )


def require_contract(kind: str, contract: str) -> None:
    """Raise `InvalidConfiguration` if there are no checks for plugins of `kind` under `contract`."""
    if not re.fullmatch(r"\d+\.\d+", contract):
        raise InvalidConfiguration(
            f"a contract is called MAJOR.MINOR, such as {CONTRACT}, not {contract!r}", field="contract"
        )
    asked, ours = _version(contract), _version(CONTRACT)
    if asked > ours:
        raise InvalidConfiguration(
            f"contract {contract} is newer than this guideway's, {CONTRACT}: a newer guideway may test against it",
            field="contract",
        )
    first = min((_version(check.since) for check in checks(kind)), default=ours)
    if asked < first or asked[0] != ours[0]:
        raise InvalidConfiguration(
            f"there are no checks of {kind} plugins for contract {contract}: the oldest are for "
            f"{'.'.join(map(str, first))}",
            field="contract",
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
