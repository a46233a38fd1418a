"""Proof that a modifier did what a check is about: one that never acts keeps most rules, and shows nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from guideway.api import Feedback, LogitModifier
from numpy.typing import NDArray

from guideway_conformance.modifier.records import Applied, Running
from guideway_conformance.modifier.verbs import Answers
from guideway_conformance.registry import Act
from guideway_conformance.subjects import NotPerformed

__all__ = ["Evidence", "require"]

MOST = 8
"""The number of sequences that are heard again to find one for which it mattered."""

FIRST = 12
"""The number of steps of each of them that are looked at."""

HOW = "Add an Example to its `examples` (or `requests` in conformance.toml)"


@dataclass(slots=True)
class Evidence:
    """Counts of what a modifier did while a check ran."""

    rows: int = 0
    """Rows that its payloads spoke of."""
    acted: int = 0
    """Those that it changed, drew or told something of."""
    draft_rows: int = 0
    """Rows after drafts, of sequences with a state."""
    acted_after_drafts: int = 0
    ended: int = 0
    """Sequences that it ended."""
    forked: int = 0
    """States that it forked."""
    fork_refusals: int = 0
    """Those that it refused to fork."""
    sequences: list[Running] = field(default_factory=list)
    """All that were started."""
    new_bench: Callable[[], Any] | None = None
    """Makes another `Bench` like those they ran on; None as long as there was none."""

    def saw(self, applied: Applied, before: NDArray[Any]) -> None:
        """Count the rows of a step, whose logits were `before`."""
        batch, rows = applied.work.batch, applied.rows
        after_draft = np.ones(batch.num_rows, dtype=np.bool_)
        after_draft[batch.row_start[:-1]] = False
        has_state = np.array([state is not None for state in applied.work.states], dtype=np.bool_)
        self.draft_rows += int((after_draft & np.repeat(has_state, np.diff(batch.row_start))).sum())
        changed = np.ones(len(rows), dtype=np.bool_)
        if applied.token_ids is None and not applied.emitted:
            changed = (applied.logits[rows] != before[rows]).any(axis=1)
        self.rows += len(rows)
        self.acted += int(changed.sum())
        self.acted_after_drafts += int(after_draft[rows[changed]].sum())


def require(cls: type[LogitModifier[Any]], evidence: Evidence, acts: tuple[Act, ...]) -> None:
    """Raises `NotPerformed`, saying which example to add, if the modifier did not do each of `acts`."""
    elsewhere = cls.report is not LogitModifier.report or cls.edit_prompt is not LogitModifier.edit_prompt
    acts_without_rows = evidence.ended or (not evidence.rows and elsewhere)
    if "rows" in acts and not evidence.acted and not acts_without_rows:
        raise NotPerformed(
            f"your examples never made it act: its payloads spoke of {evidence.rows} rows, and none was changed. {HOW} "
            "with options, `prompt_token_ids`, `generated` or `logits` at which it changes something"
        )
    if "drafts" in acts and evidence.draft_rows and not evidence.acted_after_drafts and not acts_without_rows:
        raise NotPerformed(
            f"your examples never made it act after drafts: of {evidence.draft_rows} rows after drafts none was "
            f"changed. {HOW} at which it acts on more than the first row of a step"
        )
    if "forks" in acts and not evidence.forked:
        why = "none of its states lived on after a token"
        if evidence.fork_refusals:
            why = f"of {evidence.fork_refusals} states it refused each"
        raise NotPerformed(
            f"your examples never made it fork: {why}. {HOW} with options or `generated` at which it forks, or leave "
            "out its `fork` if it refuses every state"
        )
    listens = cls.accept is not LogitModifier.accept and not cls.derived
    if "hears" in acts and listens:
        _require_hearing(evidence, "tokens")
    if "feedback" in acts and listens:
        _require_hearing(evidence, "feedback")


def _require_hearing(evidence: Evidence, what: str) -> None:
    """Raises `NotPerformed` unless some sequence gets what one whose modifier heard no `what` would not get."""
    heard = [sequence for sequence in evidence.sequences if sequence.state is not None and sequence.tokens]
    if not heard or evidence.ended or evidence.new_bench is None:
        return
    of_each: dict[tuple[int, int], Running] = {}
    for sequence in heard:
        of_each.setdefault((id(sequence.example), len(sequence.tokens)), sequence)
    for sequence in sorted(of_each.values(), key=lambda sequence: -len(sequence.tokens))[:MOST]:
        told = _told(heard, sequence) if what == "feedback" else None
        if _mattered(evidence.new_bench(), evidence.new_bench(), sequence, told):
            return
    raise NotPerformed(
        f"your examples never made it act on what it heard: of {len(heard)} sequences each got what a state gives that "
        f"heard none of its {what}. {HOW} whose `generated`, after `prompt_token_ids`, makes what came before matter"
    )


def _told(heard: Sequence[Running], sequence: Running) -> list[Feedback]:
    """All that the transform emitted for one token or several of sequences of the same example: no number but those
    that it can emit."""
    alike = [other for other in heard if other.example == sequence.example]
    return [feedback for other in alike for _, feedback in other.journal[:FIRST] if feedback]


def _another(told: Sequence[Feedback], feedback: Feedback | None) -> Feedback | None:
    """Feedback for as many tokens as `feedback` is of, whose numbers were emitted for others; None if all are alike."""
    for other in told if feedback else ():
        assert feedback is not None
        places = {name: np.arange(len(array)) % len(other[name]) for name, array in feedback.items()}
        made = {name: other[name][place] for name, place in places.items()}
        if any(not np.array_equal(made[name], array, equal_nan=True) for name, array in feedback.items()):
            return made
    return None


def _mattered(hearing: Any, deaf: Any, sequence: Running, told: Sequence[Feedback] | None) -> bool:
    """Return whether `sequence`, heard again, gets at any step what it would not get if nothing had been heard, or if
    the tokens had come with other feedback of what was `told`. What it teaches the modifier may matter to the next one
    only."""

    def differ() -> bool:
        found, wanted = hearing.peek([pair[0]]).of(0), deaf.peek([pair[1]]).of(0)
        same = np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f")
        return not same or Answers.of(hearing, pair[0]) != Answers.of(deaf, pair[1])

    pair = _at_start(hearing, sequence), _at_start(deaf, sequence)
    for token_ids, feedback in sequence.journal[:FIRST]:
        hearing.accept(pair[0], token_ids, feedback)
        if told is None:
            pair[1].tokens += token_ids
        else:
            try:
                deaf.accept(pair[1], token_ids, _another(told, feedback))
            except Exception:  # to this state nobody would have told it: so it is looked at
                return True
        if differ():
            return True
    if Answers.of(hearing, pair[0], report=True) != Answers.of(deaf, pair[1], report=True):
        return True
    if not hearing.transform.emits:
        return False
    pair = _at_start(hearing, sequence), _at_start(deaf, sequence)
    return differ()


def _at_start(bench: Any, sequence: Running) -> Running:
    """`sequence` as it started."""
    again: Running = bench.again(sequence, hears=False)
    again.tokens = []
    return again
