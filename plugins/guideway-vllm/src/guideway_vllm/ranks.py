"""A check, once all workers of an engine core have started, that they run the same plugins as the core.

Otherwise a difference would be found late or never, because vLLM drops the output of all ranks but one.
"""

from __future__ import annotations

from typing import Any

from guideway.api import PluginError
from guideway.plugins import PluginPlan, Plugins

from guideway_vllm.config import GuestConfig

__all__ = ["check_ranks", "plan_of"]


def plan_of(worker: Any) -> PluginPlan | None:
    """Return the plan of a vLLM worker; None if it does not load guideway."""
    guest = getattr(worker, "guideway_guest", None)
    return None if guest is None else guest.plan


def check_ranks(executor: Any, vllm_config: Any) -> None:
    """Compare the plan of this engine core with its workers' plans, on all machines. Raises `PluginError`, naming each
    rank that differs, and its differences."""
    config = GuestConfig.of(vllm_config)
    if config is None:
        return
    wanted = config.plan(Plugins(settings=config.plugins))
    wrong = []
    for rank, plan in enumerate(executor.collective_rpc(plan_of)):
        if plan is None:
            wrong.append(f"rank {rank} does not load guideway (VLLM_PLUGINS may keep it from that)")
        elif differences := wanted.differences(plan):
            wrong.append(f"rank {rank}: {', '.join(differences)}")
    if wrong:
        raise PluginError(
            f"engine core and workers do not run the same plugins: {'; '.join(wrong)}. Install the same packages on "
            "every machine, give each the same configuration and start the server anew",
            plugin="host.vllm",
        )
