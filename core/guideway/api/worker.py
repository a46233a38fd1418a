"""Worker mixins: code that runs inside every worker process, beside the model. Not yet run by any host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = ["WorkerMixin"]


class WorkerMixin:
    """Subclass, and override what you need; public methods you add are reachable as
    ``engine.call_workers("name.method", ...)``. Several mixins are composed into one class at start-up, in configured
    order; two that define the same attribute are refused, naming both."""

    contract: ClassVar[str] = "1.0"
    name: ClassVar[str]

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    def on_model_loaded(self, worker: Any) -> None:
        """Once, after the model's weights are in place and before the first step."""

    def before_step(self, step: Any) -> None:
        """Before each forward pass."""

    def after_step(self, step: Any) -> None:
        """After each step's tokens are drawn."""

    def close(self) -> None:
        """Once, when the worker shuts down."""
