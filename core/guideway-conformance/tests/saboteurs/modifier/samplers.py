"""Samplers that draw what they must not."""

from __future__ import annotations

import numpy as np
from guideway.api import Array, Need, Payload, Step

from saboteurs import saboteur
from saboteurs.modifier.references import Draw, DrawSampler


@saboteur("modifier.draws_one_token_per_entry")
class DrawsForAllRows(Draw):
    """Draws a token for every row of the logits."""

    class Transform(DrawSampler):
        """Ignores whose rows they are."""

        def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
            return step.ops.argmax(logprobs)

    transform = Transform


@saboteur("modifier.draws_one_token_per_entry")
class DrawsFractions(Draw):
    """Draws token ids as float."""

    class Transform(DrawSampler):
        """Halves and doubles."""

        def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
            return super().sample(logprobs, payload, step) / 2 * 2

    transform = Transform


@saboteur("modifier.draws_no_forbidden_token")
class DrawsFromNoise(Draw):
    """Draws the neighbor of the likeliest token half of the time."""

    class Transform(DrawSampler):
        """Off by one."""

        def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
            drawn = super().sample(logprobs, payload, step)
            return (drawn + drawn % 2) % self.context.vocabulary_size

    transform = Transform


@saboteur("modifier.draws_nothing_forbidden_at_the_extremes")
class FirstWhereNoneIsFound(Draw):
    """Inverts the cumulative distribution, whose sum in float32 may be less than the number drawn."""

    class Transform(DrawSampler):
        """Takes the first column then."""

        def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
            below = step.ops.cumsum(step.ops.exp(step.ops.gather(logprobs, payload.rows)))
            return step.ops.argmax((below > step.uniform("draw", payload.rows)) * 1.0)

    transform = Transform


@saboteur("modifier.draws_nothing_forbidden_at_the_extremes")
class FloorsProbabilities(Draw):
    """Adds noise to log-probabilities that are floored."""

    class Transform(DrawSampler):
        """Takes -12 for little enough."""

        def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
            mine = step.ops.gather(logprobs, payload.rows)
            floored = step.ops.where_rows(
                logprobs, payload.rows, mine < -12, step.ops.asarray(np.full((1, 1), -12.0, np.float32))
            )
            return super().sample(floored, payload, step)

    transform = Transform


@saboteur("modifier.draws_the_only_token")
class NeverTheLast(Draw):
    """Never draws the last token of the vocabulary."""

    class Transform(DrawSampler):
        """Clamps."""

        def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
            drawn = super().sample(logprobs, payload, step)
            return drawn - (drawn == self.context.vocabulary_size - 1) * 1

    transform = Transform


@saboteur("modifier.a_sampler_leaves_the_logits")
class SamplerThatApplies(Draw):
    """Has an `apply` that does something."""

    class Transform(DrawSampler):
        """Forbids the first token."""

        def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
            return step.ops.where_rows(logits, payload.rows, True, -np.inf)

    transform = Transform


@saboteur("modifier.uses_what_hosts_serve")
class VerifiesItsDraws(Draw):
    """Has a rule of its own for drafts, which no host asks."""

    class Transform(DrawSampler):
        """Lets all of them pass."""

        def verify(self, logprobs: Array, payload: Payload, step: Step) -> Array:
            return step.ops.argmax(logprobs)

    transform = Transform


@saboteur("modifier.uses_what_hosts_serve")
class DecidesLate(Draw):
    """Wants to choose among candidates in the scheduler's process."""

    needs = Draw.needs | {Need.SCHEDULER_DRAW}
