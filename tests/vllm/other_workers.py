"""A vLLM plugin that removes guideway's guest from workers in other processes."""

from __future__ import annotations

from multiprocessing import current_process
from pathlib import Path
from typing import Any

from tests.support.distributions import install as install_distribution


def install(folder: Path) -> None:
    """Load this module in every vLLM process with `folder` on its path."""
    install_distribution(folder, "other-workers", {"other_workers": f"{__name__}:change"}, group="vllm.general_plugins")


def change() -> None:
    from guideway_vllm import ranks

    if "Worker" in current_process().name:
        ranks.plan_of = _none


def _none(worker: Any) -> None:
    """Return the plan of a worker without a guest, None."""
