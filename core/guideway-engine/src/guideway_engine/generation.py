"""The objects that a caller holds of a request that is under way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from guideway.api.types import FinishReason, GenerationResult, SamplingParams
from guideway.errors import UnsupportedCapability

from guideway_engine.scheduling.sequence import SequenceGroup

__all__ = ["Chunk", "ChunkReader", "Generation", "check_streamable"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The news of one output."""

    index: int
    """The number of the output, from 0."""
    text: str
    """New text, in whole characters; nothing that a stop string may still take back."""
    token_ids: tuple[int, ...]
    """New token ids; they may run ahead of the text."""
    finish_reason: FinishReason | None = None
    """Set in the last chunk of an output."""


def check_streamable(params: SamplingParams, *, mixed: bool = True) -> None:
    """Raise `UnsupportedCapability` with ``best_of`` or ``max_retries``, where it is not known which outputs will be
    returned before all have ended, and with several outputs unless they may come `mixed`."""
    if params.max_retries:
        raise UnsupportedCapability(
            "with max_retries an output may be drawn again when it has ended and cannot be streamed; wait for the "
            "result",
            field="max_retries",
        )
    if params.best_of is not None:
        raise UnsupportedCapability(
            "with best_of the outputs are chosen when all have ended and cannot be streamed; wait for the result",
            field="best_of",
        )
    if params.n > 1 and not mixed:
        raise UnsupportedCapability(
            "this request has several outputs, whose texts would come mixed; iterate over chunks()", field="n"
        )


class ChunkReader:
    """Reads a request's outputs as they grow; see `Generation.reader`."""

    def __init__(self, group: SequenceGroup) -> None:
        self._group = group
        self._seen: dict[int, tuple[int, int, bool]] = {}
        """By index: characters and tokens read, and whether the end was."""

    def read(self) -> list[Chunk]:
        """Return what has come since the last call, at most one chunk per output."""
        chunks = []
        for sequence in self._group.sequences:
            num_characters, num_tokens, done = self._seen.get(sequence.index, (0, 0, False))
            if done:
                continue
            completion = sequence.completion
            text = sequence.text if completion is None else completion.text
            # tokens that are final but whose step is not done are not in `output` yet
            chunk = Chunk(
                sequence.index,
                text[num_characters:],
                tuple(sequence.output[num_tokens:]),
                None if completion is None else completion.finish_reason,
            )
            if chunk.text or chunk.token_ids or chunk.finish_reason is not None:
                self._seen[sequence.index] = (len(text), len(sequence.output), completion is not None)
                chunks.append(chunk)
        return chunks


class Driver(Protocol):
    """The calls that a `Generation` makes to its engine."""

    def step(self) -> None: ...

    def abort(self, generation: Generation) -> None: ...

    def fork(self, generation: Generation, index: int) -> int: ...


class Generation:
    """One submitted request. Iterating it, or waiting for it, drives the engine."""

    def __init__(self, engine: Driver, group: SequenceGroup) -> None:
        self._engine = engine
        self._group = group

    @property
    def result(self) -> GenerationResult | None:
        """The result, once every output has ended."""
        return self._group.result

    def __iter__(self) -> Iterator[str]:
        """New text, in whole characters, until the end; all pieces together are the result's text. After
        `Engine.close`, which ends requests with what they have, comes what is left of it, and that is the end. Raises
        the request's error if it is refused or fails, and `UnsupportedCapability` if there is more than one output:
        use `chunks`."""
        check_streamable(self._group.request.params, mixed=False)
        for chunk in self.chunks():
            if chunk.text:
                yield chunk.text
        if self.result is not None and self.result.error is not None:
            raise self.result.error

    def chunks(self) -> Iterator[Chunk]:
        """Yield what is new of each output, until all have ended. Raises `UnsupportedCapability` with ``best_of`` and
        ``max_retries``."""
        reader = self.reader()
        while True:
            ended = self.result is not None
            yield from reader.read()
            if ended:
                return
            self._engine.step()

    def reader(self) -> ChunkReader:
        """Make a reader of the outputs that drives nothing, for a program that steps the engine itself. Raises
        `UnsupportedCapability` with ``best_of`` and ``max_retries``."""
        check_streamable(self._group.request.params)
        return ChunkReader(self._group)

    def wait(self) -> GenerationResult:
        """Drive the engine until this request has ended."""
        while self._group.result is None:
            self._engine.step()
        return self._group.result

    def fork(self, index: int = 0) -> int:
        """Let output `index` go on twice from here; returns the index of the new output, which is one more in the
        result and draws for itself. Raises `InvalidRequest` if it has ended, `UnsupportedCapability` if a modifier
        cannot fork, `LimitExceeded` if there is no slot."""
        return self._engine.fork(self, index)

    def abort(self) -> None:
        """End it now; `result` then holds what there is."""
        self._engine.abort(self)
