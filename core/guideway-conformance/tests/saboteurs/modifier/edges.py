"""Modifiers that go wrong at an edge: a limit, the border of a word, the end of a text, the place of another one."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    FINISH,
    Array,
    Companion,
    Example,
    Feedback,
    LogitTransform,
    Outcome,
    Payload,
    Request,
    Step,
    StepBatch,
)
from guideway.api.bitmask import num_words

from saboteurs import saboteur
from saboteurs.modifier.compiling import Compiling
from saboteurs.modifier.references import (
    Allow,
    Ban,
    Guide,
    GuideTransform,
    Repetition,
    RepetitionState,
    RepetitionTransform,
    Watermark,
)

__all__: list[str] = []

ENOUGH = 9
"""Tokens after which a sequence is over."""
MANY = 48
"""Rows that are worth a thread."""


@saboteur("modifier.release_ends_one_sequence")
class KeepsPayloadsByPlace(Repetition):
    """Gives the payload of the step before where slots and positions are the same, and who is there is another."""

    last: Any = None

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        place = batch.slots.tobytes(), batch.positions.tobytes()
        if self.last is None or self.last[0] != place:
            self.last = place, super().prepare(batch, states)
        payload: Payload | None = self.last[1]
        return payload


@saboteur("modifier.release_ends_one_sequence")
class KeepsRowsByPlace(Watermark):
    """The same of the rows, with a derived state."""

    last: Any = None

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        place = batch.slots.tobytes(), batch.positions.tobytes()
        if self.last is None or self.last[0] != place:
            self.last = place, super().prepare(batch, states)
        payload: Payload | None = self.last[1]
        return payload


@saboteur("modifier.forced_keeps_its_limit")
class ForcesOneMore(Repetition):
    """Forces one token more than the limit, late in a text."""

    def forced(self, state: RepetitionState, limit: int) -> Sequence[int]:
        return [97, 98, 99, 100][: limit + 1] if len(state.tokens) > ENOUGH + 8 else []


@saboteur("modifier.forced_keeps_its_limit")
class ForcesAnotherTokenAtTheLimit(Repetition):
    """Forces another token where there is room for one."""

    def forced(self, state: RepetitionState, limit: int) -> Sequence[int]:
        return [98][:limit] if limit == 1 else [97, 98][:limit]


@saboteur("modifier.validate_counts")
class StumblesOverTheLastToken(Repetition):
    """Knows the numbers of all tokens but the last one."""

    def validate(self, state: RepetitionState, token_ids: Sequence[int]) -> int:
        return -1 if len(self.context.vocabulary) - 1 in token_ids else len(token_ids)


@saboteur("modifier.the_clock_is_nothing")
class EndsAfterAPause(Repetition):
    """Ends a text that stood still, and gives the same rows till then."""

    def accept(self, state: Any, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        now = time.monotonic()
        paused = now - getattr(state, "at", now) > 3600
        state.at = now
        super().accept(state, token_ids, feedback)
        return FINISH if paused else CONTINUE


@saboteur("modifier.the_clock_is_nothing")
class ValidatesForAWhile(Repetition):
    """Lets no more drafts pass than there is time to look at."""

    def validate(self, state: RepetitionState, token_ids: Sequence[int]) -> int:
        until = time.perf_counter() + 30
        return sum(time.perf_counter() < until for _ in token_ids)


class OverwritesCompanions(GuideTransform):
    """Puts its own row where there is no companion, in the array that others read too."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        every = step.ops.asarray(np.arange(step.companion_rows.shape[0], dtype=np.int32))
        step.ops.where_rows(step.companion_rows, every, step.companion_rows < 0, 0)
        return super().apply(logits, payload, step)


@saboteur("modifier.arguments_stay")
class TakesCompanionRowsForItsOwn(Guide):
    """Changes `Step.companion_rows`."""

    transform = OverwritesCompanions


class ScatteringTransform(RepetitionTransform):
    """Writes each token's new logit, and twice that of a token that is there twice."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ids, values = payload.arrays["ids"], payload.arrays["values"]
        raised = step.ops.gather(logits, payload.rows, ids) + values
        return step.ops.scatter(logits, payload.rows, ids, raised)


@saboteur("modifier.runs_on_every_device")
class WritesTwice(Repetition):
    """Has one pair twice in `scatter`."""

    transform: ClassVar[type[LogitTransform]] = ScatteringTransform


class DampingTransform(RepetitionTransform):
    """Scales rows by a factor that may be 0."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return step.ops.scale_rows(logits, payload.rows, 0 * payload.arrays["values"][:, 0])


@saboteur("modifier.runs_on_every_device")
class ScalesByZero(Repetition):
    """Gives `scale_rows` a factor that is not positive."""

    transform: ClassVar[type[LogitTransform]] = DampingTransform


@saboteur("modifier.closing_ends_threads_and_files_of_a_modifier")
class LeavesThreadsOfALargeBatch(Repetition):
    """Starts threads when there is much to do, and ends them never."""

    pool: ThreadPoolExecutor | None = None

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        if batch.num_rows >= MANY:
            self.pool = self.pool or ThreadPoolExecutor(1)
            self.pool.submit(int).result()
        return super().prepare(batch, states)


@saboteur("modifier.any_width")
class SetsTheSignBit(Ban):
    """Forbids a letter in words that have a sign, where its bit is the sign."""

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        word = np.zeros(1, dtype=np.int32)
        word[0] |= 1 << self.context.vocabulary.tokens.index(b"a") % 32
        return super().prepare(batch, states)


@saboteur("modifier.a_bitmask_is_all_it_applies")
class MasksTheVocabularyAlone(Allow):
    """Has no words for the columns past the vocabulary."""

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        payload = super().prepare(batch, states)
        words = num_words(len(self.context.vocabulary))
        return payload and Payload(payload.rows, {"allowed": payload.arrays["allowed"][:, :words].copy()})


@saboteur("modifier.what_start_takes_is_served")
class ReportsItsWords(Repetition):
    """Tells the user all the words of a request, however many they are."""

    examples: ClassVar[Sequence[Example]] = (Example({"strength": 3.0, "words": ["ab", "bc"]}),)

    def start(self, request: Request, sequence: Any, compiled: Any) -> Any:
        state: Any = super().start(request, sequence, compiled)
        if state is not None:
            state.words = request.params.modifiers[self.name]["words"]
        return state

    def report(self, state: Any) -> dict[str, Any]:
        return {"words": state.words}


@saboteur("modifier.companions_serve_several_threads")
class KeepsThePromptOnTheInstance(Guide):
    """Keeps the companion's prompt where the next request's is kept too."""

    examples: ClassVar[Sequence[Example]] = (Example({"beside": 101}), Example({"beside": 102}))
    beside: Any = None

    def companions(self, request: Request) -> Sequence[Companion]:
        self.beside = request.params.modifiers.get(self.name)
        if self.beside is None:
            return []
        return [Companion((self.beside["beside"],))]


@saboteur("modifier.compile_serves_several_threads")
class KeepsTheKeyOnTheInstance(Compiling):
    """Keeps the key where the next request's is kept too."""

    key: Any = None

    def compile_key(self, request: Request) -> Hashable | None:
        self.key = super().compile_key(request)
        key: Hashable | None = self.key
        return key


@saboteur("modifier.steps_of_any_size")
class LooksForTheEndAfterTheStep(Repetition):
    """Ends a text with its ninth token, if that is the last one of a step."""

    def accept(self, state: Any, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state.heard = getattr(state, "heard", 0) + len(token_ids)
        super().accept(state, token_ids, feedback)
        return FINISH if state.heard == ENOUGH else CONTINUE

    def validate(self, state: Any, token_ids: Sequence[int]) -> int:
        return min(len(token_ids), max(0, ENOUGH - 1 - getattr(state, "heard", 0)))
