"""The workers of an engine core, asked once, when all have started, whether they run the plugins that it runs.

A worker whose plugins are others would otherwise be found out late or never: what ranks but one make of a step, vLLM
drops.
"""

from __future__ import annotations

from typing import Any

from guideway.api import PluginError
from guideway.plugins import PluginPlan

__all__ = ["check_ranks", "plan_of"]


def plan_of(worker: Any) -> PluginPlan | None:
    """The plan of one of vLLM's workers; None if guideway is no part of it."""
    guest = getattr(worker, "guideway_guest", None)
    return None if guest is None else guest.plan


def check_ranks(core: Any) -> None:
    """Compare the plan of a `vllm.v1.engine.core.EngineCore` with those of its workers, on whichever machines. Raises
    `PluginError`, naming each rank that differs, and in what."""
    guest = getattr(core.scheduler, "guest", None)
    if guest is None:
        return
    told = []
    for rank, plan in enumerate(core.model_executor.collective_rpc(plan_of)):
        if plan is None:
            told.append(f"rank {rank} does not load guideway (VLLM_PLUGINS may keep it from that)")
        elif differences := guest.plan.differences(plan):
            told.append(f"rank {rank}: {', '.join(differences)}")
    if told:
        raise PluginError(
            f"engine core and workers do not run the same plugins: {'; '.join(told)}. Install the same packages on "
            "every machine, give each the same configuration and start the server anew",
            plugin="host.vllm",
        )
