"""The objects that a caller holds of a request that is under way."""

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
    """The news of one output."""

    index: int
    """The number of the output, from 0."""
    text: str
    """New text, in whole characters; nothing that a stop string may still take back."""
    token_ids: tuple[int, ...]
    """New token ids; they may run ahead of the text."""
    finish_reason: FinishReason | None = None
    """Set in the last chunk of an output."""
    answer_start: int | None = None
    """The offset in the whole text of the output at which the answer begins, as `Completion.answer_start`; None: the
    reasoning has not ended, or the first tokens have not decided whether there is one."""


def check_streamable(params: SamplingParams, *, mixed: bool = True) -> None:
    """Raise `UnsupportedCapability` with ``best_of`` or ``max_retries``, where it is not known which outputs will be
    returned before all have ended, and with several outputs unless they may come `mixed`."""
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
        """By index: characters and tokens read, whether the end was, and where the answer begins."""

    def read(self) -> list[Chunk]:
        """Return what has come since the last call, at most one chunk per output."""
        chunks = []
        for sequence in self._group.sequences:
            num_characters, num_tokens, done, answer_start = self._seen.get(sequence.index, (0, 0, False, None))
            if done:
                continue
            completion = sequence.completion
            if answer_start is None:
                answer_start = self._answer_start(sequence)
            text = sequence.text if completion is None else completion.text
            # tokens that are final but whose step is not done are not in `output` yet
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
    """The answers of a request so far, for `Generation.partial`."""

    def __init__(self) -> None:
        self._outputs: dict[int, tuple[str, int | None]] = {}
        """By index: the text, and where the answer begins in it."""

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Take what is new."""
        for chunk in chunks:
            text, _ = self._outputs.get(chunk.index, ("", None))
            self._outputs[chunk.index] = (text + chunk.text, chunk.answer_start)

    def partial(
        self, params: SamplingParams, result: GenerationResult | None, index: int, *, growing_strings: bool
    ) -> Any:
        """See `Generation.partial`. `params` and `result` are the request's, this once it has ended."""
        if index not in self._outputs and index not in range(params.n):
            raise InvalidRequest(f"there is no output {index!r}", field="index")
        text, start = self._outputs.get(index, ("", None))
        if params.constraint is None or start is None:
            return None
        whole = result is not None and any(output.is_complete for output in result.outputs if output.index == index)
        return parse_partial(params.constraint, text[start:], whole=whole, growing_strings=growing_strings)


class Driver(Protocol):
    """The calls that a `Generation` makes to its engine."""

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
        """The reader of `_answers`, once they were asked for."""

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
        return ChunkReader(self._group, self._engine.answer_start)

    def partial(self, index: int = 0, *, growing_strings: bool = False) -> Any:
        """Return the object so far of output `index`, from what there is of its answer; drives nothing.

        It is plain data, no instance of a type: dicts, lists and values as JSON has them, so that properties which are
        still to come are missing. Only finished values are in it, or with `growing_strings` also the string that is
        being written, as far as it goes; a later one holds all that an earlier one held. Where the constraint is not
        about JSON it is the text, when that is finished. None: nothing is there yet, or there is no constraint. It is
        made anew, from the whole answer, with each call.

        Raises `InvalidAnswer` if what there is is no JSON, `InvalidRequest` if there is no such output, and
        `UnsupportedCapability` with ``best_of`` and ``max_retries``.
        """
        if self._reader is None:
            self._reader = self.reader()
        self._answers.add(self._reader.read())
        return self._answers.partial(self._group.request.params, self.result, index, growing_strings=growing_strings)

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
