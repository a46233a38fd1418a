"""The history of a sequence: enough to rebuild the state of every modifier anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from guideway.api.steps import Feedback
from guideway.api.types import Request, SequenceInfo
from guideway.runtime.closing import Record

__all__ = ["Journal"]


@dataclass(slots=True)
class Journal:
    """Final token ids and feedback of one sequence, step by step. Picklable."""

    request: Request
    sequence: SequenceInfo
    token_ids: list[int] = field(default_factory=list)
    """Every final token so far."""
    step_ends: list[int] = field(default_factory=list)
    """``len(token_ids)`` after each step."""
    feedback: dict[int, Mapping[str, Feedback]] = field(default_factory=dict)
    """By step, for steps that had any: feedback by modifier name."""
    constraint_start: int | None = 0
    """The number of tokens that were generated before the constraint began; None: it has not begun."""
    overruled: dict[str, None] = field(default_factory=dict)
    """The names of what a row had to be drawn without, as `unenforced` names it; a dict for its order."""
    ends: list[Record] = field(default_factory=list)
    """The findings about the end of a constrained output, the last of it last."""
    closed_early: bool = False
    """True if masks left out what could not have been completed."""

    def record(self, token_ids: Sequence[int], feedback: Mapping[str, Feedback] | None) -> None:
        """Add one step."""
        if feedback:
            self.feedback[len(self.step_ends)] = feedback
        self.token_ids += token_ids
        self.step_ends.append(len(self.token_ids))

    def rewind(self, num_tokens: int) -> None:
        """Forget the steps after the first `num_tokens` tokens, which must be where a step ended."""
        kept = 0 if num_tokens == 0 else self.step_ends.index(num_tokens) + 1
        del self.token_ids[num_tokens:], self.step_ends[kept:]
        self.feedback = {step: emitted for step, emitted in self.feedback.items() if step < kept}
        if self.constraint_start is not None and self.constraint_start > num_tokens:
            self.constraint_start = None
        num_constrained = 0 if self.constraint_start is None else num_tokens - self.constraint_start
        self.ends = [end for end in self.ends if end.at <= num_constrained]

    @property
    def end(self) -> Record | None:
        """The knowledge of the end of a constrained output; None: nothing."""
        return self.ends[-1] if self.ends else None

    def steps(self) -> list[tuple[list[int], Mapping[str, Feedback] | None]]:
        """Final tokens and feedback of each step, in order."""
        starts = [0, *self.step_ends[:-1]]
        return [
            (self.token_ids[start:end], self.feedback.get(i))
            for i, (start, end) in enumerate(zip(starts, self.step_ends, strict=False))
        ]

    def fork(self, sequence: SequenceInfo) -> Journal:
        """A copy for a sequence that shares the past."""
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
