"""Watermarks: `Kgw` raises a keyed part of the vocabulary, `GumbelMax` draws with keyed noise."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2s
from struct import pack
from typing import Annotated, Any

import numpy as np
from guideway import api
from guideway.api.options import Range
from numpy.typing import NDArray

Key = Annotated[int, Range(0, 2**63 - 1)]


@dataclass(frozen=True)
class Options:
    """The operator's options."""

    key: Key | None = None
    """The key of requests that name none; None: every request needs one."""


class Watermark(api.LogitModifier[Any]):
    """The common part: the key."""

    def __init__(self, options: Mapping[str, Any], context: api.ModifierContext) -> None:
        super().__init__(options, context)
        self.key = api.parse_options(Options, options, where=f"modifier.{self.name}").key

    def complete(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's options with the operator's key, if they have none."""
        return dict(options) if self.key is None else {"key": self.key, **options}


@dataclass(frozen=True)
class KgwWish:
    """The wish of a request: the key, the share of green tokens, and the addend of their logits."""

    key: Key
    gamma: Annotated[float, Range(0.01, 0.99)] = 0.25
    delta: Annotated[float, Range(0, 100)] = 2.0


class KgwTransform(api.LogitTransform):
    """Adds `delta` to the tokens whose keyed number after the previous token is below `gamma`."""

    history_length = 1

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, rows, given = step.ops, payload.rows, payload.arrays
        previous = step.history(rows)[:, 0]
        numbers = ops.uniform(given["key"], previous, previous, 0, self.context.logits_width)
        raised = ops.gather(logits, rows) + given["delta"][:, None]
        return ops.where_rows(logits, rows, numbers < given["gamma"][:, None], raised)


class Kgw(Watermark):
    """Raises the green list of each token: a keyed part of the vocabulary, chosen by the previous token."""

    contract, name, stage, transform, derived = "1.0", "kgw", api.Stage.PRE_WARP, KgwTransform, True
    needs = frozenset({api.Need.HISTORY})
    examples = (api.Example({"key": 1}), api.Example({"key": 2**63 - 1, "gamma": 0.5, "delta": 4.0}))

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> KgwWish | None:
        options = request.params.modifiers.get(self.name)
        return None if options is None else api.parse_options(KgwWish, self.complete(options), where="modifiers.kgw")

    def prepare(self, batch: api.StepBatch, states: Sequence[KgwWish | None]) -> api.Payload | None:
        rows, sequences = batch.select(states)
        wishes = [wish for i in sequences if (wish := states[i]) is not None]
        floats = np.array([(wish.gamma, wish.delta) for wish in wishes], dtype=np.float32).reshape(-1, 2)
        keys = np.array([wish.key for wish in wishes], dtype=np.int64)
        return api.Payload(rows, {"key": keys, "gamma": floats[:, 0].copy(), "delta": floats[:, 1].copy()})


CONTEXT_LENGTH = 4
"""Previous tokens that choose the noise of a token: with fewer, a text repeats contexts, which carry no watermark."""


def noise_of(key: int) -> Any:
    """Return BLAKE2s with 8 bytes that has read a key. The seed of a token's noise is the digest after the previous
    tokens, 64 bits each, as a signed integer; all little-endian. The key is in the data, which is as safe and takes one
    block instead of two."""
    return blake2s(pack("<q", key), digest_size=8)


def noise_seeds(digests: Sequence[bytes]) -> NDArray[np.int64]:
    """Return the digests as integers."""
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


@dataclass(slots=True)
class GumbelState:
    """The previous tokens of a sequence, and the contexts that have chosen noise; contexts as bytes."""

    noise: Any
    """What `noise_of` returned for the key."""
    sequence: api.SequenceInfo
    context: bytes
    seen: MutableMapping[bytes, None] = field(default_factory=dict)
    num_tokens: int = 0

    def digest(self) -> bytes:
        """Return the digest for the next token's noise. A context that was seen gives noise of its own, that no
        detector knows, because equal noise in one text would change the text's distribution."""
        noise, context = self.noise.copy(), self.context
        if context in self.seen:
            context = pack("<4q", -1, self.sequence.seed, self.sequence.index, self.num_tokens)
        noise.update(context)
        return noise.digest()  # type: ignore[no-any-return]

    def hear(self, token_id: int) -> None:
        """Add a token."""
        self.seen[self.context] = None
        self.context = (self.context + token_id.to_bytes(8, "little"))[-8 * CONTEXT_LENGTH :]
        self.num_tokens += 1


class GumbelSampler(api.Sampler):
    """Draws ``argmax(log p + Gumbel noise)``, which is a draw from p."""

    def sample(self, logprobs: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, seeds, zeros = step.ops, payload.arrays["seed"], payload.arrays["zero"]
        noise = 0 - ops.log(0 - ops.log(ops.uniform(seeds, zeros, zeros, 0, self.context.logits_width)))
        return ops.argmax(ops.gather(logprobs, payload.rows) + noise)


@dataclass(frozen=True)
class GumbelWish:
    """The wish of a request."""

    key: Key


class GumbelMax(Watermark):
    """Draws each token with noise that key and previous tokens choose. Over all keys, texts have the distribution that
    they have without it."""

    contract, name, stage, transform = "1.0", "gumbel_max", api.Stage.SAMPLE, GumbelSampler
    examples = (api.Example({"key": 1}), api.Example({"key": 2**63 - 1}))

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> GumbelState | None:
        options = request.params.modifiers.get(self.name)
        if options is None:
            return None
        wish = api.parse_options(GumbelWish, self.complete(options), where="modifiers.gumbel_max")
        if (request.params.best_of or request.params.n) > 1:
            raise api.InvalidRequest("texts of one prompt and key are equal: n must be 1", field="n")
        context = request.prompt_token_ids[-CONTEXT_LENGTH:]
        return GumbelState(noise_of(wish.key), sequence, pack(f"<{len(context)}q", *context))

    def prepare(self, batch: api.StepBatch, states: Sequence[GumbelState | None]) -> api.Payload | None:
        digests: list[bytes] = []
        has_drafts = batch.num_rows > batch.num_sequences
        for i, state in enumerate(states):
            if state is not None:
                digests.append(state.digest())
                if has_drafts:
                    ahead = replace(state, seen=ChainMap({}, state.seen))
                    for token_id in batch.drafts(i).tolist():
                        ahead.hear(token_id)
                        digests.append(ahead.digest())
        zeros = np.zeros(len(digests), dtype=np.int32)
        return api.Payload(batch.select(states)[0], {"seed": noise_seeds(digests), "zero": zeros})

    def accept(self, state: GumbelState, token_ids: Sequence[int], feedback: api.Feedback | None) -> api.Outcome:
        for token_id in token_ids:
            state.hear(token_id)
        return api.CONTINUE

    def validate(self, state: GumbelState, token_ids: Sequence[int]) -> int:
        return len(token_ids)

    def fork(self, state: GumbelState) -> GumbelState:
        return replace(state, seen=dict(state.seen))


@api.hookimpl
def guideway_logit_modifier(name: str) -> type[api.LogitModifier[Any]]:
    return {cls.name: cls for cls in (Kgw, GumbelMax)}[name]
