"""Classes that say something wrong of themselves, or do not work at all."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
from guideway.api import (
    Array,
    Example,
    Feedback,
    InvalidRequest,
    LogitTransform,
    ModifierContext,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
)

from saboteurs import saboteur
from saboteurs.modifier.references import (
    Allow,
    Draw,
    DrawSampler,
    Mass,
    MassTransform,
    Repetition,
    RepetitionState,
    RepetitionTransform,
    Watermark,
    WatermarkTransform,
)

_ONES = np.ones((1, 2048), dtype=np.float32)


@saboteur("modifier.says_what_it_is")
class NamedAsTheMask(Repetition):
    """Takes the name of the grammar mask."""

    name = "grammar"


@saboteur("modifier.says_what_it_is")
class NeedsAsTexts(Watermark):
    """Names its needs instead of giving them."""

    needs: ClassVar[Any] = frozenset({"history"})


@saboteur("modifier.says_what_it_is")
class StageAsText(Repetition):
    """Names its stage instead of giving it."""

    stage: ClassVar[Any] = "pre_warp"


@saboteur("modifier.has_nothing_of_an_earlier_contract")
class ActsInAnOrder(Repetition):
    """Says when it acts, as modifiers once did."""

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        self.order = 7


@saboteur("modifier.a_key_goes_with_what_is_compiled")
class KeyOfNothing(Repetition):
    """Says which requests are equal, and compiles nothing."""

    def compile_key(self, request: Request) -> Hashable | None:
        return request.seed


@saboteur("modifier.gives_examples")
class NoExample(Repetition):
    """Gives no example."""

    examples = ()


@saboteur("modifier.gives_examples")
class RefusesItsExamples(Repetition):
    """Gives an example that it refuses."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        raise InvalidRequest("strength must be positive")


@saboteur("modifier.gives_examples")
class ExamplesAsMappings(Repetition):
    """Gives request options alone."""

    examples: ClassVar[Any] = ({"strength": 3.0},)


@saboteur("modifier.gives_examples")
class PromptAsAList(Repetition):
    """Gives its prompt as a list."""

    examples = (Example({"strength": 3.0}, prompt_token_ids=cast("Any", [97, 98])),)


@saboteur("modifier.every_example_acts")
class TakesNothingForNo(Repetition):
    """Has an example without options, and takes that for a request that does not ask for it."""

    examples = (Example({"strength": 3.0}), Example({}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> RepetitionState | None:
        return super().start(request, sequence, compiled) if request.params.modifiers.get(self.name) else None


@saboteur("modifier.every_example_acts", outcome="error")
class ActsOnOneExample(Repetition):
    """Has an example at which it does nothing."""

    examples = (Example({"strength": 3.0}), Example({"strength": 0.0}))


@saboteur("modifier.validate_counts")
class FailsForAPrompt(Repetition):
    """Lets one draft too many pass, but only after a prompt as in its example."""

    examples = (Example({"strength": 3.0}, prompt_token_ids=(7, 8, 9)),)

    def validate(self, state: RepetitionState, token_ids: Sequence[int]) -> int:
        return len(token_ids) + (state.tokens[:3] == [7, 8, 9])


@saboteur("modifier.accept_gives_an_outcome")
class FailsAfterTokens(Repetition):
    """Answers with True, but only when the tokens of its example were generated."""

    examples = (Example({"strength": 3.0}, generated=(7, 8)),)

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Any:
        outcome = super().accept(state, token_ids, feedback)
        return True if state.tokens[-2:] == [7, 8] else outcome


@saboteur("modifier.numbers_stay_numbers")
class FailsForLogits(Repetition):
    """Makes NaN of a logit that is as large as in its example."""

    examples = (Example({"strength": 3.0}, logits={7: 60.0}),)

    class Overflowing(RepetitionTransform):
        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            logits = super().apply(logits, payload, step)
            own = step.ops.gather(logits, payload.rows)
            return step.ops.where_rows(logits, payload.rows, own > 50.0, np.nan)

    transform = Overflowing


@saboteur("modifier.takes_a_step")
class CannotApply(Repetition):
    """Its transform fails."""

    class Broken(LogitTransform):
        """Always fails."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            raise RuntimeError("not ready")

    transform = Broken


@saboteur("modifier.a_sampler_owns_the_draw")
class SamplerTooEarly(Draw):
    """Has a sampler at a stage where nothing is drawn."""

    stage = Stage.POST_WARP


@saboteur("modifier.a_sampler_owns_the_draw")
class NoSampler(Repetition):
    """Acts at the stage of the draw without a sampler."""

    stage = Stage.SAMPLE


@saboteur("modifier.arrays_are_names")
class ArraysAsText(Repetition):
    """Names one library instead of a set of them."""

    class Transform(RepetitionTransform):
        """As its base."""

        arrays: ClassVar[Any] = "numpy"

    transform = Transform


@saboteur("modifier.emits_fits")
class EmitsTooMuch(Mass):
    """Emits 8 KiB per row."""

    class Transform(MassTransform):
        """With a wide array."""

        emits: ClassVar[Any] = {"mass": ((), "float32"), "wide": ((2048,), "float32")}

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            step.emit("wide", step.ops.gather(logits, payload.rows)[:, :1] * step.ops.asarray(_ONES))
            return super().apply(logits, payload, step)

    transform = Transform


@saboteur("modifier.history_has_a_length")
class HistoryOfNothing(Watermark):
    """Needs the history, of which it reads nothing."""

    class Transform(WatermarkTransform):
        """Without history."""

        history_length = 0

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            raised = step.ops.gather(logits, payload.rows) + payload.arrays["delta"][:, None]
            return step.ops.where_rows(logits, payload.rows, True, raised)

    transform = Transform


@saboteur("modifier.reads_what_it_declares")
class SecretHistory(Watermark):
    """Reads the history without declaring it, where there is more than one row."""

    needs = frozenset()

    class Transform(WatermarkTransform):
        """Reads it now and then."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            return logits if len(payload) == 1 else super().apply(logits, payload, step)

    transform = Transform


@saboteur("modifier.reads_what_it_declares")
class SecretNoise(Draw):
    """Reads random numbers without declaring it, where there is more than one row."""

    needs = frozenset()

    class Transform(DrawSampler):
        """Greedy for one row."""

        def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
            if len(payload) == 1:
                return step.ops.argmax(step.ops.gather(logprobs, payload.rows))
            return super().sample(logprobs, payload, step)

    transform = Transform


@saboteur("modifier.masks_say_what_they_are")
class BitmaskTooEarly(Allow):
    """Declares a bitmask at a stage where others still raise what it forbids."""

    stage = Stage.PRE_WARP


@saboteur("modifier.masks_say_what_they_are")
class HardAndEmits(Mass):
    """Emits, and may be applied twice in a step."""

    class Transform(MassTransform):
        """Claims to be hard."""

        hard = True

    transform = Transform
