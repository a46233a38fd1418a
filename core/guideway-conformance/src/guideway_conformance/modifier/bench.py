"""A host of one modifier, as small as a host can be.

Everything a step holds is a function of each sequence's own tokens, so a sequence can be repeated, forked, rebuilt or
put into other company, and has to get the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from guideway.api import (
    Companion,
    DeviceBackend,
    Example,
    Feedback,
    InvalidConfiguration,
    InvalidRequest,
    LogitTransform,
    Need,
    Outcome,
    Payload,
    Request,
    Sampler,
    SamplingParams,
    SequenceInfo,
    Stage,
    StepBatch,
    Vocabulary,
    WorkerContext,
)
from numpy.typing import NDArray

from guideway_conformance.modifier.comparison import copied
from guideway_conformance.modifier.model import Model
from guideway_conformance.modifier.records import Applied, Running, Work
from guideway_conformance.modifier.step import OracleStep, StepArrays
from guideway_conformance.modifier.subject import MAX_MODEL_LEN, MAX_NUM_SEQUENCES, ModifierSubject
from guideway_conformance.modifier.vocabulary import synthetic
from guideway_conformance.subjects import expect

__all__ = ["NUM_DRAFTS", "REFUSALS", "Bench", "overwrite", "read_only"]

REFUSALS = (InvalidRequest, InvalidConfiguration)
"""The errors by which `start` refuses a request."""

COMPILE: Any = object()
"""Stands for what the modifier compiles for the request at that moment."""

NUM_DRAFTS = (0, 2, 0, 1, 3, 0, 16)
"""The numbers of drafts of the sequences of a crowd, in turn."""
UNLIKELY = 300
"""The first of the tokens that some drafts end with."""
MAX_ROWS = 4096
USUAL: Mapping[str, Any] = {"max_tokens": 4096, "temperature": 1.0}
"""The parameters of a request."""
NUM_VIEWS = 8
"""The logits of which a sampler is let draw, where one draw would not show enough."""


def read_only(feedback: Feedback | None) -> Feedback | None:
    """A copy of `feedback` as a modifier is given it."""
    if feedback is None:
        return None
    copies = {name: array.copy() for name, array in feedback.items()}
    for array in copies.values():
        array.setflags(write=False)
    return MappingProxyType(copies)


def overwrite(arrays: Iterable[NDArray[Any]]) -> None:
    """Other values for what was given away to be read."""
    for array in arrays:
        array.setflags(write=True)
        array[...] = 77


class Bench:
    """A new instance of the modifier and its transform, on a device, and the steps they take."""

    def __init__(
        self,
        subject: ModifierSubject,
        *,
        vocabulary: Vocabulary | None = None,
        device: DeviceBackend | None = None,
        reuses: bool = False,
        max_model_len: int = MAX_MODEL_LEN,
    ) -> None:
        self.subject = subject
        subject.evidence.new_bench = lambda: Bench(subject)
        self.cls = subject.cls
        self.vocabulary = synthetic() if vocabulary is None else vocabulary
        self.device = subject.device() if device is None else device
        self.modifier = subject.modifier(self.vocabulary, max_model_len)
        self.transform = self.new_transform()
        self.model = Model(self.vocabulary, self.cls.stage)
        self.reuses = reuses
        """True if it overwrites what it has given the modifier, as soon as a host may."""
        self._companions: dict[str, tuple[Companion, ...]] = {}
        self._buffers = np.empty((4, MAX_ROWS), dtype=np.int32)

    def new_transform(self, device: DeviceBackend | None = None) -> LogitTransform:
        """The worker's half."""
        context = WorkerContext(
            device=device or self.device,
            vocabulary_size=len(self.vocabulary),
            logits_width=self.vocabulary.logits_width,
        )
        return self.subject.transform_class()(context, copy.deepcopy(dict(self.subject.settings.options)))

    # Sequences

    def request(self, example: Example | None, number: int, params: Mapping[str, Any] | None = None) -> Request:
        """The `number`-th request, each with a seed of its own, and a prompt unless its example has one; `example`
        None: without the modifier. `params` are others than the usual ones."""
        prompt = self.model.prompt(number)
        if example is not None and example.prompt_token_ids is not None:
            prompt = self._known(example.prompt_token_ids) or prompt
        modifiers = {} if example is None else {self.cls.name: copy.deepcopy(dict(example.options))}
        return Request(
            request_id=f"request-{number}",
            prompt_token_ids=prompt,
            params=SamplingParams(**{**USUAL, "seed": number, "modifiers": modifiers, **(params or {})}),
            seed=number,
        )

    def _known(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Those that the vocabulary has."""
        return tuple(token_id for token_id in token_ids if 0 <= token_id < len(self.vocabulary))

    def begin(self, request: Request, slot: int = 0, index: int = 0, compiled: Any = COMPILE) -> Running:
        """A sequence of `request`, with what was `compiled` for it; raises one of `REFUSALS` if the modifier refuses
        it, and has it released then."""
        info = SequenceInfo(index=index, seed=request.seed, prompt_token_ids=request.prompt_token_ids)
        companions = self._companions.get(request.request_id, ())
        if Need.COMPANIONS in self.cls.needs and request.request_id not in self._companions:
            companions = self._companions[request.request_id] = tuple(self.modifier.companions(request))
        try:
            selected = self.cls.name in request.params.modifiers
            value = compiled if compiled is not COMPILE else self.modifier.compile(request, None) if selected else None
            state = self.modifier.start(request, info, value)
        except BaseException:
            self.modifier.release(None)
            raise
        sequence = Running(request, info, slot, state, companions)
        self.subject.evidence.sequences.append(sequence)
        return sequence

    @cached_property
    def examples(self) -> list[Example]:
        """Those examples that give a state. Fails if there is none, for then nothing can be said of the modifier."""
        given = self.subject.examples()
        found, refused, left_alone = [], [], 0
        bench = Bench(self.subject, vocabulary=self.vocabulary, device=self.device)
        for i, example in enumerate(given):
            try:
                sequence = bench.begin(bench.request(example, i))
            except REFUSALS as error:
                refused.append(str(error))
                continue
            bench.modifier.release(sequence.state)
            if sequence.state is None:
                left_alone += 1
            else:
                found.append(example)
        address = f"modifier.{getattr(self.cls, 'name', '?')}"
        expect(
            found,
            f"of its {len(given)} examples of request options {left_alone} were left alone and {len(refused)} refused"
            f"{': ' if refused else ''}{'; '.join(refused)}. Give options that it acts on in its class variable "
            f'`examples`, or as `requests` of [subjects."{address}"] in conformance.toml',
        )
        return found

    def start(self, number: int, *, slot: int | None = None, index: int = 0) -> Running:
        """The `number`-th sequence: examples in turn, a prompt of its own."""
        example = self.examples[number % len(self.examples)]
        request = self.request(example, number)
        sequence = self.begin(request, (7 * number + 3) % MAX_NUM_SEQUENCES if slot is None else slot, index)
        sequence.example = example
        return sequence

    def leave_one_alone(self, number: int) -> None:
        """A request without the modifier comes and goes."""
        try:
            self.release(self.begin(self.request(None, number)))
        except REFUSALS:
            return

    def bystander(self, number: int) -> Running | None:
        """A sequence the modifier leaves alone, if there is such a thing."""
        try:
            sequence = self.begin(self.request(None, number), (7 * number + 3) % MAX_NUM_SEQUENCES)
        except REFUSALS:
            return None
        if sequence.state is None:
            return sequence
        self.modifier.release(sequence.state)
        return None

    def crowd(self, size: int = 5, *, num_steps: int = 3) -> list[Running]:
        """Sequences of all examples, somewhat under way, with some among them that the modifier leaves alone."""
        found = [self.start(number) for number in range(max(size, len(self.examples)))]
        for _ in range(num_steps):
            if running := [sequence for sequence in found if sequence.outcome == "continue"]:
                self.step(running)
        for place, ended in enumerate(found):
            if ended.outcome != "continue":
                self.release(ended)
                found[place] = self.start(place + 16 * len(self.examples), slot=ended.slot)
        bystanders = [sequence for number in (40, 41) if (sequence := self.bystander(number)) is not None]
        return [*bystanders[:1], *found[:2], *bystanders[1:], *found[2:]]

    @staticmethod
    def stages(subject: ModifierSubject, *, whole: bool = False) -> Iterator[tuple[Bench, Work, Payload]]:
        """A crowd at its start and later, with drafts, and a payload where there is one: one that can be kept, or the
        modifier's own if `whole`."""
        for num_steps in (0, 3, 9):
            bench = Bench(subject)
            crowd = bench.crowd(num_steps=num_steps)
            work = bench.work(crowd, bench.drafts(crowd))
            payload = bench.prepare(work)
            if payload is not None and len(payload):
                yield bench, work, payload if whole else copied(payload)

    def again(self, sequence: Running, *, slot: int | None = None, hears: bool = True) -> Running:
        """`sequence` rebuilt here by replaying its journal; without `hears` its modifier is told no token."""
        slot = sequence.slot if slot is None else slot
        copied = self.begin(sequence.request, slot, (sequence.started_as or sequence.info).index)
        copied.info, copied.started_as, copied.example = sequence.info, sequence.started_as, sequence.example
        for token_ids, feedback in sequence.journal if hears else ():
            self.accept(copied, token_ids, feedback)
        copied.tokens = list(sequence.tokens)
        return copied

    def fork(self, parent: Running, *, slot: int, index: int) -> Running:
        """A second sequence with the past of `parent`."""
        info = SequenceInfo(index=index, seed=parent.info.seed, prompt_token_ids=parent.info.prompt_token_ids)
        state = parent.state if parent.state is None or self.cls.derived else self.modifier.fork(parent.state)
        journal = list(parent.journal)
        started_as = None if self.cls.derived else parent.started_as or parent.info  # one derived state serves all
        tokens = list(parent.tokens)
        fork = Running(parent.request, info, slot, state, parent.companions, tokens, journal, started_as=started_as)
        fork.example = parent.example
        self.subject.evidence.sequences.append(fork)
        return fork

    def release(self, sequence: Running) -> None:
        """The end of a sequence."""
        self.modifier.release(sequence.state)

    def forget(self, request_id: str) -> None:
        """Drop what was noted of a request that is over."""
        self._companions.pop(request_id, None)

    # Steps

    def step(self, sequences: Sequence[Running], drafts: Sequence[Sequence[int]] | None = None) -> Applied:
        """One step of `sequences`, of those that ended before nothing."""
        work = self.work(sequences, drafts)
        applied = self.apply(work, self.prepare(work))
        for i, sequence in enumerate(sequences):
            ids = self.final(applied, i)
            self.accept(sequence, ids, self.feedback(applied, i, len(ids)))
        if self.reuses:
            overwrite(self._given_batch)
        return applied

    def peek(self, sequences: Sequence[Running], drafts: Sequence[Sequence[int]] | None = None) -> Applied:
        """Return what a step would give, without the tokens."""
        work = self.work(sequences, drafts)
        return self.apply(work, self.prepare(work))

    def views(self, sequence: Running, drafts: Sequence[int] = ()) -> Iterator[NDArray[Any]]:
        """Return what a step would give to `sequence`, of the model's logits and of others, and what its transform
        would tell: more than one draw shows."""
        work = self.work([sequence], [drafts])
        payload = self.prepare(work)
        for turn in range(NUM_VIEWS if issubclass(self.cls.transform, Sampler) else 1):
            logits = work.logits
            if turn:
                noise = np.random.default_rng(turn).standard_normal(logits.shape[1], dtype=np.float32)
                logits = logits / (2 + turn) + noise
                logits = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
            applied = self.apply(work, payload, logits=logits)
            yield applied.of(0)
            order = np.argsort(applied.rows)
            yield from (applied.emitted[name][order] for name in sorted(applied.emitted))

    def other_logits(self, work: Work) -> Iterator[NDArray[Any]]:
        """The logits of `work`, and others that a modifier of the stage may find: flat ones, and some with a peak, of
        which one leaves a doubt."""
        yield work.logits
        likely = np.nanargmax(work.logits, axis=1)
        for peak in (0.0, 6.0, 40.0):
            logits = np.where(np.isneginf(work.logits), -np.inf, np.float32(0))
            logits[np.arange(len(logits)), likely] = peak
            if self.cls.stage in (Stage.POST_WARP, Stage.SAMPLE):
                logits = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            yield logits.astype(np.float32)

    def work(self, sequences: Sequence[Running], drafts: Sequence[Sequence[int]] | None = None) -> Work:
        """A step of `sequences` with `drafts`, as many of them as the modifier would let pass."""
        passed = [self.passing(s, d) for s, d in zip(sequences, drafts or [()] * len(sequences), strict=True)]
        lengths = [len(s.info.prompt_token_ids) + len(s.tokens) for s in sequences]
        batch = StepBatch.build([s.slot for s in sequences], lengths, passed)
        counts = np.diff(batch.row_start)
        seeds = np.repeat(np.array([s.info.seed for s in sequences], dtype=np.int64), counts)
        indices = np.repeat(np.array([s.info.index for s in sequences], dtype=np.int32), counts)
        contexts: list[list[int]] = []
        given: list[Mapping[int, float] | None] = []
        beside: list[list[int]] = []
        width = max((len(s.companions) for s in sequences), default=0)
        companion_rows = np.full((batch.num_rows, max(1, width)), -1, dtype=np.int32)
        for i, s in enumerate(sequences):
            ahead = [[*s.tokens, *passed[i][:k]] for k in range(len(passed[i]) + 1)]
            contexts += [[*s.info.prompt_token_ids, *tokens] for tokens in ahead]
            given += [None if s.example is None else s.example.logits] * len(ahead)
            for j, companion in enumerate(s.companions):
                first = batch.num_rows + len(beside)
                companion_rows[batch.row_start[i] : batch.row_start[i + 1], j] = first + np.arange(len(ahead))
                beside += [[*companion.prompt_token_ids, *tokens] for tokens in ahead]
        bitmask = np.stack([self.model.allowed(context) for context in contexts])
        history = np.stack([self.model.history(context, self.transform.history_length) for context in contexts])
        hidden = np.stack([self.model.hidden_state(context) for context in [*contexts, *beside]])
        arrays = StepArrays(batch.positions, seeds, indices, companion_rows, hidden, bitmask, history)
        rows = [self.model.logits(context, some) for context, some in zip(contexts, given, strict=True)]
        logits = np.stack([*rows, *map(self.model.logits, beside)])
        return Work(batch, sequences, logits, arrays)

    def drafts(self, sequences: Sequence[Running], turn: int = 0) -> list[list[int]]:
        """Likely tokens for each of `sequences`, for one none and for another 16; some end with one that is not."""
        found = []
        for i, sequence in enumerate(sequences):
            context = [*sequence.info.prompt_token_ids[-MAX_ROWS:], *sequence.tokens]
            drafts = self.model.ahead(context, NUM_DRAFTS[(i + turn) % len(NUM_DRAFTS)])
            found.append([*drafts[:-1], UNLIKELY + i] if i % 4 == 1 and drafts else drafts)
        return found

    def passing(self, sequence: Running, drafts: Sequence[int]) -> list[int]:
        """The drafts the modifier would let pass."""
        if sequence.state is None or not drafts:
            return list(drafts)
        return list(drafts[: self.modifier.validate(sequence.state, tuple(drafts))])

    def prepare(self, work: Work) -> Payload | None:
        """This step's payload."""
        batch = work.batch
        arrays = (batch.slots, batch.row_start, batch.draft_token_ids, batch.positions)
        if self.reuses:  # the same memory in every step
            self._given_batch = [buffer[: len(array)] for buffer, array in zip(self._buffers, arrays, strict=True)]
            for given, array in zip(self._given_batch, arrays, strict=True):
                given[...] = array
        else:
            self._given_batch = [array.copy() for array in arrays]
        payload = self.modifier.prepare(StepBatch(*self._given_batch), work.states)
        expect(
            payload is None or isinstance(payload, Payload),
            f"prepare returned a {type(payload).__name__}, neither a Payload nor None",
        )
        rows = np.array([]) if payload is None else np.asarray(payload.rows)
        outside = rows[(rows < 0) | (rows >= work.batch.num_rows)]
        expect(len(outside) == 0, f"it speaks of row {outside[:1]}; the batch has rows 0..{work.batch.num_rows - 1}")
        return payload

    def apply(
        self,
        work: Work,
        payload: Payload | None,
        *,
        logits: NDArray[Any] | None = None,
        parts: Sequence[NDArray[np.int32]] | None = None,
        transform: LogitTransform | None = None,
    ) -> Applied:
        """`payload` applied to `logits` (default: the model's), in one call or one for each set of rows in `parts`."""
        host = work.logits if logits is None else logits
        transform = transform or self.transform
        array = self.device.from_logits(host.copy())
        draws = isinstance(transform, Sampler)
        token_ids = np.full(work.batch.num_rows, -1, dtype=np.int64)
        acted: list[NDArray[np.int32]] = []
        emitted: dict[str, list[NDArray[Any]]] = {name: [] for name in transform.emits}
        pieces = [] if payload is None else [payload] if parts is None else [payload.take(part) for part in parts]
        for piece in pieces:
            if len(piece) == 0:
                continue
            step = self.step_of(work, transform, len(piece))
            uploaded = self.device.upload(piece)
            if draws:
                token_ids[piece.rows] = self.host(transform.sample(array, uploaded, step))  # type: ignore[attr-defined]
            else:
                array = transform.apply(array, uploaded, step)
            acted.append(np.array(piece.rows))
            expect(
                step.emitted.keys() == transform.emits.keys(),
                f"of its feedback {sorted(transform.emits)} it emitted {sorted(step.emitted)}",
            )
            for name, values in step.emitted.items():
                emitted[name].append(self.host(values))
        applied = Applied(
            work,
            np.concatenate(acted) if acted else np.empty(0, dtype=np.int32),
            self.host(array),
            token_ids if draws else None,
            {name: np.concatenate(values) for name, values in emitted.items() if values},
        )
        self.subject.evidence.saw(applied, host)
        return applied

    def step_of(self, work: Work, transform: LogitTransform, num_entries: int) -> OracleStep:
        """Make the step that `transform` sees."""
        return OracleStep(work.arrays, self.device.ops, self.cls, transform, num_entries)

    def host(self, array: Any) -> NDArray[Any]:
        """A device's array."""
        found: NDArray[Any] = self.device.download({"x": array}).result()["x"]
        return found

    def final(self, applied: Applied, index: int) -> list[int]:
        """Tokens that the `index`-th sequence may really get after this step: those of its example or drafts, as far as
        they can be drawn, and one more; with a sampler, what it drew."""
        work = applied.work
        drafts = work.batch.drafts(index).tolist()
        sequence = work.sequences[index]
        wanted = (
            () if sequence.example is None else self._known(sequence.example.generated or ())[len(sequence.tokens) :]
        )
        found: list[int] = []
        for k, row in enumerate(range(work.batch.row_start[index], work.batch.row_start[index + 1])):
            owned = applied.token_ids is not None and applied.token_ids[row] >= 0
            if owned:
                assert applied.token_ids is not None
                found.append(int(applied.token_ids[row]))
            elif k < len(wanted) and np.isfinite(applied.logits[row, wanted[k]]):
                found.append(wanted[k])
            elif k < len(drafts) and np.isfinite(applied.logits[row, drafts[k]]):
                found.append(drafts[k])
            else:
                found.append(self.model.drawn(applied.logits[row], work.logits[row], int(work.arrays.positions[row])))
            if k < len(drafts) and found[-1] != drafts[k]:
                break
        return found

    def feedback(self, applied: Applied, index: int, num_tokens: int) -> Feedback | None:
        """Return what was emitted at the rows that gave the final tokens; None if it was not at all of them."""
        if not applied.emitted:
            return None
        first = int(applied.work.batch.row_start[index])
        places = [np.flatnonzero(applied.rows == row) for row in range(first, first + num_tokens)]
        if not all(len(place) == 1 for place in places):
            return None
        at = np.concatenate(places)
        return {name: array[at].astype(self.transform.emits[name][1]) for name, array in applied.emitted.items()}

    def accept(self, sequence: Running, token_ids: Sequence[int], feedback: Feedback | None) -> None:
        """The final tokens of a step."""
        if sequence.state is not None and not self.cls.derived:
            given = read_only(feedback)
            outcome = self.modifier.accept(sequence.state, tuple(token_ids), given)
            if self.reuses:
                overwrite((given or {}).values())
            expect(isinstance(outcome, Outcome), f"accept returned a {type(outcome).__name__}, which is not an Outcome")
            sequence.outcome = outcome.action
            self.subject.evidence.ended += outcome.action != "continue"
        sequence.tokens += token_ids
        sequence.journal.append((list(token_ids), feedback))
