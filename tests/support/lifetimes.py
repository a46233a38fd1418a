"""One plugin of each kind that a host closes; each records when it is constructed, used and closed, and fails at the
requested event."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guideway.api import LogitModifier, LogitTransform, Need, Payload, Stage, WorkerMixin, hookimpl
from guideway.devices.torch.device import TorchDevice
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

__all__ = ["guideway_device_backend", "guideway_grammar_strategy", "guideway_logit_modifier", "guideway_worker_mixin"]


def note(what: str, event: str) -> None:
    """Append a line to the file in ``GWT_LIFETIME``, if it is set; raise if ``GWT_FAILS`` contains this event."""
    with Path(os.environ.get("GWT_LIFETIME", os.devnull)).open("a", encoding="utf-8") as file:
        file.write(f"{what} {event}\n")
    if f"{what} {event}" in os.environ.get("GWT_FAILS", "").split(","):
        raise RuntimeError(f"{what} {event}")


class Lived:
    """Records its own construction and end."""

    what: str

    def __init__(self, *args: Any) -> None:
        note(self.what, "built")
        super().__init__(*args)

    def close(self) -> None:
        note(self.what, "closed")


class Strategy(Lived, ReferenceStrategy):
    contract, name, what = "1.0", "lived", "strategy"

    def compile(self, constraint: Any) -> Any:
        note(self.what, "used")
        return super().compile(constraint)


class Device(Lived, TorchDevice):
    contract, name, what = "1.0", "lived", "device"

    def from_logits(self, logits: Any) -> Any:
        note(self.what, "used")
        return super().from_logits(logits)


class Transform(Lived, LogitTransform):
    what = "transform"

    def apply(self, logits: Any, payload: Payload, step: Any) -> Any:
        note(self.what, "used")
        return logits


class Modifier(Lived, LogitModifier[bool]):
    contract, name, what = "1.0", "lived", "modifier"
    stage, transform, derived = Stage.PRE_WARP, Transform, True
    needs: frozenset[Need] = frozenset()

    def start(self, request: Any, sequence: Any, compiled: Any) -> bool:
        return True

    def prepare(self, batch: Any, states: Any) -> Payload:
        note(self.what, "used")
        return Payload(batch.select(states)[0])

    def release(self, state: Any) -> None:
        note(self.what, "used")


class SecondTransform(Transform):
    what = "second-transform"


class SecondModifier(Modifier):
    contract, name, what, transform = "1.0", "second", "second-modifier", SecondTransform


class Mixin(WorkerMixin):
    contract, name = "1.0", "lived"

    def __init__(self, options: Mapping[str, Any]) -> None:
        note("mixin", "built")

    def on_model_loaded(self, worker: Any) -> None:
        note("mixin", "used")

    def after_step(self, step: Any) -> None:
        note("mixin", "used")

    def close(self) -> None:
        note("mixin", "closed")


class SecondMixin(WorkerMixin):
    contract, name = "1.0", "second"

    def __init__(self, options: Mapping[str, Any]) -> None:
        note("second-mixin", "built")

    def close(self) -> None:
        note("second-mixin", "closed")


@hookimpl
def guideway_grammar_strategy() -> type[Strategy]:
    return Strategy


@hookimpl
def guideway_device_backend() -> type[Device]:
    return Device


@hookimpl
def guideway_logit_modifier(name: str) -> type[Modifier]:
    return {"lived": Modifier, "second": SecondModifier}[name]


@hookimpl
def guideway_worker_mixin(name: str) -> type[WorkerMixin]:
    return {"lived": Mixin, "second": SecondMixin}[name]
