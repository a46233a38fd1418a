"""Lowers tokens where a linear probe of the model's last hidden states responds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from guideway import api
from guideway.api.options import Range


@dataclass(frozen=True)
class Probe:
    """A probe: it responds with ``sigmoid(weight @ hidden + bias)``, and lowers its tokens."""

    weight: tuple[float, ...]
    token_ids: tuple[int, ...]
    bias: Annotated[float, Range(-1e6, 1e6)] = 0.0


@dataclass(frozen=True)
class Options:
    """The operator's options."""

    probes: Mapping[str, Any] = field(default_factory=dict)
    """The fields of a `Probe` by its name."""


@dataclass(frozen=True)
class Wish:
    """The wish of a request: a probe, and how much a full response subtracts from the logits of its tokens."""

    probe: str
    strength: Annotated[float, Range(-100, 100)] = 10.0


def read_probes(options: Mapping[str, Any], num_tokens: int) -> dict[str, Probe]:
    """Return the operator's probes, by name. Raises `InvalidConfiguration`."""
    where = "modifier.steering"
    probes = {
        name: api.parse_options(Probe, found if isinstance(found, Mapping) else {}, where=f"{where}.probes.{name}")
        for name, found in api.parse_options(Options, options, where=where).probes.items()
    }
    for name, probe in probes.items():
        if not probe.weight or not np.isfinite(np.array(probe.weight, dtype=np.float32)).all():
            raise api.InvalidConfiguration("weight must be finite numbers", field=f"{where}.probes.{name}.weight")
        if not probe.token_ids or not all(0 <= i < num_tokens for i in probe.token_ids):
            raise api.InvalidConfiguration(
                f"token_ids must be from 0 to {num_tokens - 1}", field=f"{where}.probes.{name}.token_ids"
            )
    if len({len(probe.weight) for probe in probes.values()}) > 1:
        raise api.InvalidConfiguration("all probes need a weight per hidden state", field=f"{where}.probes")
    return probes


class SteeringTransform(api.LogitTransform):
    """Subtracts each row's strength times its probe's response from the logits of the probe's tokens."""

    def __init__(self, context: api.WorkerContext, options: Mapping[str, Any]) -> None:
        super().__init__(context, options)
        probes = list(read_probes(options, context.vocabulary_size).values())
        lowered = np.zeros((len(probes), context.logits_width), dtype=np.float32)
        for row, probe in zip(lowered, probes, strict=True):
            row[list(probe.token_ids)] = 1
        self.num_hidden = len(probes[0].weight) if probes else 0
        self.lowered = context.device.ops.asarray(lowered)
        self.weights = context.device.ops.asarray(np.array([probe.weight for probe in probes], dtype=np.float32))
        self.biases = context.device.ops.asarray(np.array([[probe.bias] for probe in probes], dtype=np.float32))

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, rows, which = step.ops, payload.rows, payload.arrays["probe"]
        hidden = step.hidden_states(rows)
        if hidden.shape[1] != self.num_hidden:
            raise api.InvalidConfiguration(
                f"the probes have {self.num_hidden} weights, but the model {hidden.shape[1]} hidden states",
                field="modifier.steering.probes",
            )
        scores = (hidden * ops.gather(self.weights, which)).sum(axis=1) + ops.gather(self.biases, which)[:, 0]
        penalties = payload.arrays["strength"] / (1.0 + ops.exp(0 - scores))
        own = ops.gather(logits, rows) - ops.gather(self.lowered, which) * penalties[:, None]
        return ops.where_rows(logits, rows, True, own)


class Steering(api.LogitModifier[Wish]):
    """In the scheduler: the probe and strength of each request."""

    contract, name, stage, transform, derived = "1.0", "steering", api.Stage.PRE_WARP, SteeringTransform, True
    needs = frozenset({api.Need.HIDDEN_STATES})
    examples = (api.Example({"probe": "example"}), api.Example({"probe": "example", "strength": -3.5}))

    def __init__(self, options: Mapping[str, Any], context: api.ModifierContext) -> None:
        super().__init__(options, context)
        self.names = list(read_probes(options, len(context.vocabulary)))

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> Wish | None:
        options = request.params.modifiers.get(self.name)
        if options is None:
            return None
        wish = api.parse_options(Wish, options, where="modifiers.steering")
        if wish.probe not in self.names:
            raise api.InvalidRequest(f"probe must be one of {self.names}", field="modifiers.steering.probe")
        return wish

    def prepare(self, batch: api.StepBatch, states: Sequence[Wish | None]) -> api.Payload | None:
        rows, sequences = batch.select(states)
        wishes = [wish for i in sequences if (wish := states[i]) is not None]
        which = np.array([self.names.index(wish.probe) for wish in wishes], dtype=np.int32)
        strengths = np.array([wish.strength for wish in wishes], dtype=np.float32)
        return api.Payload(rows, {"probe": which, "strength": strengths})


@api.hookimpl
def guideway_logit_modifier() -> type[api.LogitModifier[Any]]:
    return Steering
