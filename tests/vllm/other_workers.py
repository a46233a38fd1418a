"""A plugin of vLLM's by which workers in processes of their own have lost guideway's guest."""

from __future__ import annotations

from multiprocessing import current_process
from pathlib import Path
from typing import Any

from tests.support.distributions import install as install_distribution


def install(folder: Path) -> None:
    """Have every process of vLLM's that finds `folder` on its path load this."""
    install_distribution(folder, "other-workers", {"other_workers": f"{__name__}:change"}, group="vllm.general_plugins")


def change() -> None:
    from guideway_vllm import ranks

    if "Worker" in current_process().name:
        ranks.plan_of = _none


def _none(worker: Any) -> None:
    """The plan of a worker without a guest."""
