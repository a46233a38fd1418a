"""The workers of an engine core, asked once, when all have started, whether they run the plugins that it runs.

A worker whose plugins are others would otherwise be found out late or never: what ranks but one make of a step, vLLM
drops.
"""

from __future__ import annotations

from typing import Any

from guideway.api import PluginError
from guideway.plugins import PluginPlan, Plugins

from guideway_vllm.config import GuestConfig

__all__ = ["check_ranks", "plan_of"]


def plan_of(worker: Any) -> PluginPlan | None:
    """The plan of one of vLLM's workers; None if guideway is no part of it."""
    guest = getattr(worker, "guideway_guest", None)
    return None if guest is None else guest.plan


def check_ranks(executor: Any, vllm_config: Any) -> None:
    """Compare the plan of the engine core in this process with those of its workers, on whichever machines. Raises
    `PluginError`, naming each rank that differs, and in what."""
    config = GuestConfig.of(vllm_config)
    if config is None:
        return
    wanted = config.plan(Plugins(settings=config.plugins))
    told = []
    for rank, plan in enumerate(executor.collective_rpc(plan_of)):
        if plan is None:
            told.append(f"rank {rank} does not load guideway (VLLM_PLUGINS may keep it from that)")
        elif differences := wanted.differences(plan):
            told.append(f"rank {rank}: {', '.join(differences)}")
    if told:
        raise PluginError(
            f"engine core and workers do not run the same plugins: {'; '.join(told)}. Install the same packages on "
            "every machine, give each the same configuration and start the server anew",
            plugin="host.vllm",
        )
