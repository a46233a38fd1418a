"""A conformance run from end to end: plan, perform in isolation, report."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable

from guideway.api import CONTRACT
from guideway.conformance.isolation import MEMORY, Host
from guideway.conformance.known_failures import Preferences
from guideway.conformance.outcomes import Result
from guideway.conformance.registry import TIERS, Tier, checks, plan
from guideway.conformance.report import Report
from guideway.conformance.target import Target

__all__ = ["run"]


def run(
    target: Target,
    *,
    contract: str = CONTRACT,
    up_to: Tier = TIERS[-1],
    preferences: Preferences | None = None,
    jobs: int | None = None,
    memory: int = MEMORY,
    on_result: Callable[[Result], None] = lambda _: None,
) -> Report:
    """Test `target` against `contract`, tiers up to `up_to`, and report. `on_result` hears each result as it comes.

    If the smoke tier fails, the rest is not performed: it would fail for the same reason a hundred times. Raises
    `CannotLoad` if the plugin cannot be imported.
    """
    preferences = preferences or Preferences()
    today = datetime.datetime.now(datetime.UTC).date()
    jobs = jobs or os.cpu_count() or 1
    with Host(target, memory=memory) as host:
        planned = plan(target.kind, host.declared, host.traits, contract=contract, up_to=up_to)
        smoke = {check.id for check in checks(target.kind) if check.tier == "smoke"}
        found: dict[object, Result] = {}
        for part in ([o for o in planned if o.check in smoke], [o for o in planned if o.check not in smoke]):
            results: Iterable[Result] = host.run(part, jobs=jobs)
            if any(result.outcome in ("fail", "error") for result in found.values()):
                results = [Result(o, "error", "not performed, because a smoke check failed") for o in part]
            for result in results:
                (marked,) = preferences.applied([result], today)
                found[marked.obligation] = marked
                on_result(marked)
    return Report.of(target, contract, host.declared, host.traits, [found[obligation] for obligation in planned])
