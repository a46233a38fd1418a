"""The answers that a modifier gives of a state, beside what it does to logits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from guideway.api import LogitModifier
from guideway.runtime.modifiers.answers import read_names, read_report

from guideway_conformance.modifier.records import Running
from guideway_conformance.subjects import expect

__all__ = ["Answers", "expect_same_answers", "read_said"]

LIMIT = 16


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one state."""

    forced: tuple[int, ...]
    validate: tuple[tuple[tuple[int, ...], int], ...]
    """Drafts, and how many of them pass."""
    unenforced: tuple[str, ...] = ()
    report: Any = None
    """Plain values; None if it was not asked, which a host does once, when all is over."""

    @staticmethod
    def of(bench: Any, sequence: Running, *, report: bool = False) -> Answers:
        """Ask the modifier of `bench`, a `Bench`. With `report` the sequence is over: ask nothing later."""
        state, modifier = sequence.state, bench.modifier
        if state is None:
            return Answers((), ())
        forced = tuple(int(token_id) for token_id in modifier.forced(state, LIMIT))
        context = [*sequence.info.prompt_token_ids[-64:], *sequence.tokens]
        offers = [(), (300, 301), tuple(bench.model.ahead(context, 4)), forced, (*forced[:-1], 302)]
        offers += [tuple(sequence.example.generated or ()) if sequence.example else ()]
        counts = tuple((offer, int(modifier.validate(state, offer))) for offer in dict.fromkeys(offers))
        names = read_names(modifier.unenforced(state))
        again = read_names(modifier.unenforced(state))
        expect(names == again, f"asked twice unenforced gives {names} and then {again}")
        return Answers(forced, counts, tuple(names), read_said(modifier, state) if report else None)


def read_said(modifier: LogitModifier[Any], state: Any) -> Any:
    """Plain values of what `report` gives of `state`, read as a host reads them; None if it gives None."""
    told = modifier.report(state)
    if told is None:
        return None
    try:
        return json.loads(json.dumps(read_report(told)))
    except Exception as error:
        raise AssertionError(f"report gives {_wrong_in(told)}") from error


def _wrong_in(told: Any) -> str:
    """The part of a report that is no JSON, or the report."""
    for key, value in told.items() if isinstance(told, Mapping) else ():
        try:
            json.dumps({key: value}, allow_nan=False)
        except (TypeError, ValueError):
            return f"{value!r}, a {type(value).__name__}, for {key!r}, which is no JSON"
    text = repr(told)
    return f"{text[:200]}{'...' if len(text) > 200 else ''}, which no host takes"


def expect_same_answers(found: Answers, wanted: Answers, what: str) -> None:
    """Fail with `what` and the first difference, unless two states give the same answers."""
    expect(
        found.forced == wanted.forced,
        f"{what}: forced gives {list(found.forced)} instead of {list(wanted.forced)}",
    )
    for (offer, count), (_, other) in zip(found.validate, wanted.validate, strict=True):
        expect(count == other, f"{what}: of the drafts {list(offer)} validate lets {count} pass instead of {other}")
    names = list(found.unenforced), list(wanted.unenforced)
    expect(names[0] == names[1], f"{what}: unenforced gives {names[0]} instead of {names[1]}")
    expect(_close(found.report, wanted.report), f"{what}: report gives {found.report} instead of {wanted.report}")


def _close(a: Any, b: Any) -> bool:
    """Return whether two plain values are the same, but for the last digits of numbers."""
    if isinstance(a, float) or isinstance(b, float):
        both = isinstance(a, int | float) and isinstance(b, int | float)
        return both and (math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) or (a != a and b != b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_close(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_close, a, b))
    return bool(a == b)
