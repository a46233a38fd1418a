"""The scheduler's half: the token ids of each sequence, and which sequences exist."""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    CompiledGrammar,
    Feedback,
    InvalidConfiguration,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    ModifierContext,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    StepBatch,
    UnsupportedCapability,
    parse_options,
)
from numpy.typing import NDArray

from guideway_legacy.calls import Past
from guideway_legacy.params import Lacking, VllmParams
from guideway_legacy.processors import Processor, processors_of, vllm_target
from guideway_legacy.transform import LegacyTransform, Maker, maker_of, try_on

__all__ = ["LegacyModifier"]

NO_KEY = -1
"""The key of a sequence that needs no processors of its own."""


@dataclass(frozen=True, slots=True)
class _RequestOptions:
    extra_args: dict = field(default_factory=dict)  # type: ignore[type-arg]  # `parse_options` reads plain classes
    """The values for ``params.extra_args`` of vLLM processors."""


class _State:
    """The state of a sequence: its token ids."""

    __slots__ = ("_buffer", "key", "length", "num_prompt", "owner", "params")

    def __init__(self, token_ids: Sequence[int], num_prompt: int) -> None:
        self._buffer = np.array(token_ids, dtype=np.int32)
        self.length = len(token_ids)
        self.num_prompt = num_prompt
        self.key = NO_KEY
        self.owner: tuple[str, int] = ("", 0)
        self.params = b""
        """The parameters for the sequence's own processors, until its first token is drawn."""

    def append(self, token_ids: Sequence[int]) -> None:
        end = self.length + len(token_ids)
        if end > len(self._buffer):
            self._buffer = np.resize(self._buffer, max(end, 2 * len(self._buffer)))
        self._buffer[self.length : end] = token_ids
        self.length = end

    @property
    def token_ids(self) -> NDArray[np.int32]:
        return self._buffer[: self.length]


class LegacyModifier(LogitModifier[_State]):
    """Runs existing processors, in order, on each row of every request that selects it.

    As ``modifier.legacy`` it takes them from its options. A subclass with its own `name` and `processors` is a modifier
    with that name and without options.
    """

    contract = "1.0"
    name = "legacy"
    stage = Stage.PRE_WARP
    transform: ClassVar[type[LogitTransform]] = LegacyTransform
    processors: ClassVar[Sequence[Processor]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        declared = {"processors": tuple(cls.processors), "where": f"modifier.{cls.name}"}
        cls.transform = type(f"{cls.__name__}Transform", (LegacyTransform,), declared)

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        where = f"modifier.{self.name}"
        self._processors = found = processors_of(self.processors, options, where)
        self._stateful = any(processor.stateful for processor in found)
        self._vllm = [
            (processor.label, vllm_target(processor, f"{where}.processors[{i}]"))
            for i, processor in enumerate(found)
            if processor.kind == "vllm"
        ]
        # random, so that the keys of a process that replaces this one are never the same
        self._keys = count(secrets.randbits(62))
        self._live: dict[tuple[str, int], list[int]] = {}
        """The key of each request and sequence index, and its number of states. There are two for a moment when states
        are rebuilt."""

    def compile_key(self, request: Request) -> Hashable | None:
        """Return one key for requests with equal parameters, so that they are tried once."""
        wanted = parse_options(_RequestOptions, request.params.modifiers[self.name], where=f"modifiers.{self.name}")
        return self._params(request, wanted.extra_args).to_json() if self._vllm else b""

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> None:
        """Try the processors of vLLM on a first row, and refuse parameters that a processor reads but guideway
        lacks."""
        options = parse_options(_RequestOptions, request.params.modifiers[self.name], where=f"modifiers.{self.name}")
        for label, maker in self._trials:
            params = self._params(request, options.extra_args)
            past = Past(list(request.prompt_token_ids), len(request.prompt_token_ids))
            with self._refusing(label, params):
                try_on(maker, params, past, self.context.vocabulary.logits_width)

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> _State | None:
        wanted = request.params.modifiers.get(self.name)
        if wanted is None:
            return None
        where = f"modifiers.{self.name}"
        options = parse_options(_RequestOptions, wanted, where=where)
        if options.extra_args and not self._vllm:
            raise InvalidRequest(f"no processor of {self.name!r} reads extra_args", field=f"{where}.extra_args")
        state = _State(sequence.prompt_token_ids, len(sequence.prompt_token_ids))
        if self._stateful:
            params = self._params(request, options.extra_args)
            state.params = params.to_json()
            state.owner = (request.request_id, sequence.index)
            entry = self._live.setdefault(state.owner, [NO_KEY, 0])
            entry[0] = next(self._keys) if entry[0] == NO_KEY else entry[0]
            entry[1] += 1
            state.key = entry[0]
        return state

    def accept(self, state: _State, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state.append(token_ids)
        return CONTINUE

    def validate(self, state: _State, token_ids: Sequence[int]) -> int:
        """Accept drafts only without state: a stateful processor must be called exactly once for each final token."""
        return len(token_ids) if state.key == NO_KEY else 0

    def prepare(self, batch: StepBatch, states: Sequence[_State | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        past = [state.length if state is not None else 0 for state in states]
        within = rows - batch.row_start[sequences]
        lengths = np.array(past, dtype=np.int32)[sequences] + within
        keys = np.array([NO_KEY if state is None else state.key for state in states], dtype=np.int64)
        if np.any((keys[sequences] != NO_KEY) & (within > 0)):
            raise UnsupportedCapability(
                f"modifier {self.name!r} runs processors that keep state per sequence, so it takes no drafts; this "
                "host does not ask `validate`",
                field="num_speculative_tokens",
            )
        token_ids = np.full((len(rows), lengths.max(initial=0)), -1, dtype=np.int32)
        params = [b""] * len(rows)
        for row, (sequence, draft) in enumerate(zip(sequences.tolist(), within.tolist(), strict=True)):
            if (state := states[sequence]) is not None:
                token_ids[row, : state.length] = state.token_ids
                token_ids[row, state.length : state.length + draft] = batch.drafts(sequence)[:draft]
                params[row] = state.params if state.length == state.num_prompt else b""
        num_prompts = np.array([0 if state is None else state.num_prompt for state in states], dtype=np.int32)
        return Payload(
            rows,
            {
                "token_ids": token_ids,
                "num_tokens": lengths,
                "num_prompt": num_prompts[sequences],
                "key": keys[sequences],
                "params": _as_rows(params),
            },
            {"live": np.array([key for key, _ in self._live.values()], dtype=np.int64)},
        )

    def fork(self, state: _State) -> _State:
        if state.key != NO_KEY:
            raise UnsupportedCapability(
                f"modifier {self.name!r} runs processors that keep state per sequence and cannot be copied safely, so "
                "it refuses to fork a sequence",
                field="fork",
            )
        return _State(state.token_ids.tolist(), state.num_prompt)

    def release(self, state: _State | None) -> None:
        if state is None or state.key == NO_KEY:
            return
        entry = self._live[state.owner]
        entry[1] -= 1
        if entry[1] == 0:
            del self._live[state.owner]

    def _params(self, request: Request, extra_args: Mapping[str, Any]) -> VllmParams:
        """Return the request's parameters for vLLM processors, after every processor that validates them accepted
        them."""
        field = f"modifiers.{self.name}.extra_args"
        params = VllmParams.of(request.params, self.context.vocabulary, extra_args, field)
        for label, target in self._vllm:
            validate = getattr(target, "validate_params", None)
            if validate is not None:
                try:
                    with self._refusing(label, params):
                        validate(params)
                except InvalidRequest:
                    raise
                except ValueError as error:  # a refusal in vLLM's interface
                    raise InvalidRequest(str(error), field=field) from error
        return params

    @cached_property
    def _trials(self) -> list[tuple[str, Maker]]:
        """The processors of vLLM, each with its name, made in this process only for trials."""
        found = []
        for i, processor in enumerate(self._processors):
            if processor.kind == "vllm":
                with suppress(InvalidConfiguration):  # it may only be possible in the worker
                    where = f"modifier.{self.name}.processors[{i}]"
                    found.append((processor.label, maker_of(processor, where, "cpu")))
        return found

    @contextmanager
    def _refusing(self, label: str, params: VllmParams) -> Iterator[None]:
        """Raise `UnsupportedCapability` for an attribute of `params` that was read in the meantime but does not
        exist."""
        missed = None
        try:
            yield
        except Lacking as error:
            missed = error.name
        if missed := missed or params.missed:
            raise UnsupportedCapability(
                f"{label} reads params.{missed}, which guideway does not know of this request; leave modifier "
                f"{self.name!r} out, or have the processor do without",
                field=f"modifiers.{self.name}",
            )


def _as_rows(texts: list[bytes]) -> NDArray[np.uint8]:
    """Return ``uint8[m, n]``: each text, padded with zeros."""
    found = np.zeros((len(texts), max(map(len, texts), default=0)), dtype=np.uint8)
    for row, text in enumerate(texts):
        found[row, : len(text)] = np.frombuffer(text, dtype=np.uint8)
    return found
