"""Handles for requests that are running."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from guideway.api.types import FinishReason, GenerationResult, SamplingParams
from guideway.errors import InvalidRequest, UnsupportedCapability
from guideway.objects import parse_partial

from guideway_engine.scheduling.sequence import SequenceGroup, SequenceState

__all__ = ["Answers", "Chunk", "ChunkReader", "Generation", "check_streamable"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """New output of one sequence since the last chunk."""

    index: int
    """Index of the output, from 0."""
    text: str
    """New text, in whole characters; excludes text that a stop string may still remove."""
    token_ids: tuple[int, ...]
    """New token ids; they may be ahead of the text."""
    finish_reason: FinishReason | None = None
    """Set in the last chunk of an output."""
    answer_start: int | None = None
    """Position in the whole text of the output where the answer begins, as in `Completion.answer_start`. None while the
    reasoning continues, or while it is undecided whether there is any."""


def check_streamable(params: SamplingParams, *, mixed: bool = True) -> None:
    """Raise `UnsupportedCapability` with ``best_of`` or ``max_retries``, where the returned outputs are chosen only
    after all have ended; and with several outputs unless they may be `mixed`."""
    if params.max_retries:
        raise UnsupportedCapability(
            "an output with max_retries cannot be streamed, because it may be drawn again after it has ended; wait "
            "for the result",
            field="max_retries",
        )
    if params.best_of is not None:
        raise UnsupportedCapability(
            "outputs with best_of cannot be streamed, because they are chosen after all have ended; wait for the "
            "result",
            field="best_of",
        )
    if params.n > 1 and not mixed:
        raise UnsupportedCapability(
            "this request has several outputs, so its texts would be mixed; iterate over chunks()", field="n"
        )


class ChunkReader:
    """Reads a request's outputs as they grow; see `Generation.reader`."""

    def __init__(self, group: SequenceGroup, answer_start: Callable[[SequenceState], int | None]) -> None:
        self._group = group
        self._answer_start = answer_start
        self._seen: dict[int, tuple[int, int, bool, int | None]] = {}
        """For each output index: characters read, tokens read, whether the end was read, and where the answer begins.
        """

    def read(self) -> list[Chunk]:
        """Return the new output since the last call, at most one chunk per output."""
        chunks = []
        for sequence in self._group.sequences:
            num_characters, num_tokens, done, answer_start = self._seen.get(sequence.index, (0, 0, False, None))
            if done:
                continue
            completion = sequence.completion
            if answer_start is None:
                answer_start = self._answer_start(sequence)
            text = sequence.text if completion is None else completion.text
            # `output` excludes final tokens of an unfinished step
            chunk = Chunk(
                sequence.index,
                text[num_characters:],
                tuple(sequence.output[num_tokens:]),
                None if completion is None else completion.finish_reason,
                answer_start,
            )
            if chunk.text or chunk.token_ids or chunk.finish_reason is not None:
                done = completion is not None
                self._seen[sequence.index] = (len(text), len(sequence.output), done, answer_start)
                chunks.append(chunk)
        return chunks


class Answers:
    """Partial answers of a request, for `Generation.partial`."""

    def __init__(self) -> None:
        self._outputs: dict[int, tuple[str, int | None]] = {}
        """For each output index: the text, and the position where its answer begins."""

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Append new chunks."""
        for chunk in chunks:
            text, _ = self._outputs.get(chunk.index, ("", None))
            self._outputs[chunk.index] = (text + chunk.text, chunk.answer_start)

    def partial(
        self, params: SamplingParams, result: GenerationResult | None, index: int, *, growing_strings: bool
    ) -> Any:
        """See `Generation.partial`. `params` are the request's; `result` is its result if it has ended."""
        if index not in self._outputs and index not in range(params.n):
            raise InvalidRequest(f"there is no output {index!r}", field="index")
        text, start = self._outputs.get(index, ("", None))
        if params.constraint is None or start is None:
            return None
        whole = result is not None and any(output.is_complete for output in result.outputs if output.index == index)
        return parse_partial(params.constraint, text[start:], whole=whole, growing_strings=growing_strings)


class Driver(Protocol):
    """The methods of an engine that a `Generation` calls."""

    def step(self) -> None: ...

    def abort(self, generation: Generation) -> None: ...

    def fork(self, generation: Generation, index: int) -> int: ...

    def answer_start(self, sequence: SequenceState) -> int | None: ...


class Generation:
    """One submitted request. Iterating it, or waiting for it, drives the engine."""

    def __init__(self, engine: Driver, group: SequenceGroup) -> None:
        self._engine = engine
        self._group = group
        self._answers = Answers()
        self._reader: ChunkReader | None = None
        """Reader for `_answers`, created on first use."""

    @property
    def result(self) -> GenerationResult | None:
        """Result, once every output has ended."""
        return self._group.result

    def __iter__(self) -> Iterator[str]:
        """Yield new text, in whole characters, until the end; the pieces joined are the result's text. After
        `Engine.close`, which ends all requests, yield the rest of the text. Raises the request's error if it is refused
        or fails, and `UnsupportedCapability` if there is more than one output: use `chunks`."""
        check_streamable(self._group.request.params, mixed=False)
        for chunk in self.chunks():
            if chunk.text:
                yield chunk.text
        if self.result is not None and self.result.error is not None:
            raise self.result.error

    def chunks(self) -> Iterator[Chunk]:
        """Yield new chunks of each output until all have ended. Raises `UnsupportedCapability` with ``best_of`` and
        ``max_retries``."""
        reader = self.reader()
        while True:
            ended = self.result is not None
            yield from reader.read()
            if ended:
                return
            self._engine.step()

    def reader(self) -> ChunkReader:
        """Return a reader of the outputs that does not drive the engine, for programs that call `Engine.step`. Raises
        `UnsupportedCapability` with ``best_of`` and ``max_retries``."""
        check_streamable(self._group.request.params)
        return ChunkReader(self._group, self._engine.answer_start)

    def partial(self, index: int = 0, *, growing_strings: bool = False) -> Any:
        """Return the object of output `index` as far as its answer is written. Does not drive the engine.

        The object is plain JSON data (dicts, lists and values), not an instance of a type; properties that are not
        written yet are missing. It contains only finished values, and with `growing_strings` also the unfinished string
        at the end. A later object contains all data of an earlier one. If the constraint is not for JSON, it is the
        text once that is finished. None: nothing is finished yet, or there is no constraint. Each call parses the whole
        answer again.

        Raises `InvalidAnswer` if the answer is not JSON, `InvalidRequest` if there is no such output, and
        `UnsupportedCapability` with ``best_of`` and ``max_retries``.
        """
        if self._reader is None:
            self._reader = self.reader()
        self._answers.add(self._reader.read())
        return self._answers.partial(self._group.request.params, self.result, index, growing_strings=growing_strings)

    def wait(self) -> GenerationResult:
        """Drive the engine until this request has ended, and return its result."""
        while self._group.result is None:
            self._engine.step()
        return self._group.result

    def fork(self, index: int = 0) -> int:
        """Fork output `index` at its present end and return the index of the new output, which is added to the result
        and sampled independently. Raises `InvalidRequest` if the output has ended, `UnsupportedCapability` if a
        modifier cannot fork, and `LimitExceeded` if there is no slot."""
        return self._engine.fork(self, index)

    def abort(self) -> None:
        """End the request now; `result` then holds its output up to this point."""
        self._engine.abort(self)
