"""The journal of a sequence, from which the state of every modifier can be rebuilt anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from guideway.api.steps import Feedback
from guideway.api.types import Request, SequenceInfo
from guideway.runtime.constraints.closing import Record

__all__ = ["Journal"]


@dataclass(slots=True)
class Journal:
    """Final token ids and feedback of one sequence, step by step. Picklable."""

    request: Request
    sequence: SequenceInfo
    token_ids: list[int] = field(default_factory=list)
    """All final tokens."""
    step_ends: list[int] = field(default_factory=list)
    """``len(token_ids)`` after each step."""
    feedback: dict[int, Mapping[str, Feedback]] = field(default_factory=dict)
    """By step, for steps that had any: feedback by modifier name."""
    constraint_start: int | None = 0
    """Tokens generated before the constraint began; None: it has not begun."""
    overruled: dict[str, None] = field(default_factory=dict)
    """Names of bans that did not hold, as in `unenforced`; a dict for its order."""
    ends: list[Record] = field(default_factory=list)
    """Closing records of a constrained output, oldest first."""
    closed_early: bool = False
    """True if a token was drawn from a mask in which closing excluded tokens."""

    def record(self, token_ids: Sequence[int], feedback: Mapping[str, Feedback] | None) -> None:
        """Append one step."""
        if feedback:
            self.feedback[len(self.step_ends)] = feedback
        self.token_ids += token_ids
        self.step_ends.append(len(self.token_ids))

    def write(self, num_tokens: int, num_steps: int, token_ids: Sequence[int]) -> None:
        """Write steps of one token each after the first `num_tokens` tokens and `num_steps` steps, in place of any that
        are there."""
        self.token_ids[num_tokens:] = token_ids
        self.step_ends[num_steps:] = range(num_tokens + 1, num_tokens + len(token_ids) + 1)

    def rewind(self, num_tokens: int) -> None:
        """Drop the steps after the first `num_tokens` tokens, which must be the end of a step."""
        kept = 0 if num_tokens == 0 else self.step_ends.index(num_tokens) + 1
        del self.token_ids[num_tokens:], self.step_ends[kept:]
        self.feedback = {step: emitted for step, emitted in self.feedback.items() if step < kept}
        if self.constraint_start is not None and self.constraint_start > num_tokens:
            self.constraint_start = None
        num_constrained = 0 if self.constraint_start is None else num_tokens - self.constraint_start
        self.ends = [end for end in self.ends if end.at <= num_constrained]

    @property
    def end(self) -> Record | None:
        """Latest closing record of a constrained output, or None."""
        return self.ends[-1] if self.ends else None

    def steps(self) -> list[tuple[list[int], Mapping[str, Feedback] | None]]:
        """Return final tokens and feedback of each step, in order."""
        starts = [0, *self.step_ends[:-1]]
        return [
            (self.token_ids[start:end], self.feedback.get(i))
            for i, (start, end) in enumerate(zip(starts, self.step_ends, strict=False))
        ]

    def fork(self, sequence: SequenceInfo) -> Journal:
        """Return a copy for a sequence that shares the past."""
        return Journal(
            self.request,
            sequence,
            list(self.token_ids),
            list(self.step_ends),
            dict(self.feedback),
            self.constraint_start,
            dict(self.overruled),
            list(self.ends),
            self.closed_early,
        )
