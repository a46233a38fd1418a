"""Tokens that a modifier forces, and those that it lets pass."""

from __future__ import annotations

import numpy as np
from guideway.api import Need, Stage

from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.edges import under_examples
from guideway_conformance.modifier.records import Applied, Running
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.modifier.verbs import LIMIT
from guideway_conformance.registry import check
from guideway_conformance.subjects import NotPerformed, expect

NUM_STEPS = 16


@check("modifier", trait="forces")
def forced_is_all_that_is_left(subject: ModifierSubject) -> None:
    """The tokens that `forced` gives come because the transform leaves no other: in the row before each of them, as
    drafts, every other one is at -inf; and `validate` lets them all pass."""
    found = 0
    bench = Bench(subject)
    for sequence in under_examples(bench):
        for _ in range(NUM_STEPS):
            if sequence.outcome != "continue":
                break
            forced = [int(token_id) for token_id in bench.modifier.forced(sequence.state, LIMIT)]
            found += len(forced)
            passed = bench.modifier.validate(sequence.state, tuple(forced))
            expect(passed == len(forced), f"it forces {forced}, of which its validate lets {passed} pass")
            rows = bench.peek([sequence], [forced]).of(0)
            for k, token_id in enumerate(forced):
                if rows.dtype.kind == "i":
                    expect(rows[k] == token_id, f"it forces {forced}, and in place {k} its sampler draws {rows[k]}")
                    continue
                left = np.flatnonzero(~np.isneginf(rows[k])).tolist()
                others = [other for other in left if other != token_id]
                expect(
                    not others,
                    f"it forces {forced}, but in place {k} its transform leaves {len(others)} other tokens, such as "
                    f"{others[:1]}",
                )
            bench.step([sequence])
    if not found:
        raise NotPerformed(
            "your examples never made it force a token. Add an Example to its `examples` (or `requests` in "
            f"conformance.toml) with options or `generated` after which `forced` gives one within {NUM_STEPS} tokens"
        )


@check("modifier")
def validate_stops_before_the_end(subject: ModifierSubject) -> None:
    """A token at which `accept` ends the output does not pass `validate` as a draft: all tokens of a step are final, so
    the token that is drawn after it would come after the end."""
    bench = Bench(subject)
    for sequence in under_examples(bench):
        for _ in range(NUM_STEPS):
            if sequence.outcome != "continue":
                break
            drafts = tuple(bench.final(bench.peek([sequence]), 0)[:1]) * 2
            passed = bench.modifier.validate(sequence.state, drafts)
            bench.step([sequence])
            if sequence.outcome == "finish" and tuple(sequence.tokens[-1:]) == drafts[:1]:
                expect(
                    passed == 0,
                    f"its accept ends the output at token {drafts[0]}, but its validate lets {passed} of the drafts "
                    f"{list(drafts)} pass",
                )


@check("modifier", trait="validates")
def validate_knows_what_is_forbidden(subject: ModifierSubject) -> None:
    """A `validate` that does not let all drafts of a sequence pass lets none pass that the transform forbids in the row
    before it, whatever the logits: a derived one, which has heard no token, is not asked where it needs the history."""
    known = {Need.FEEDBACK} if subject.cls.derived else {Need.FEEDBACK, Need.HISTORY}
    if subject.cls.stage is Stage.SAMPLE or not subject.cls.needs <= known:
        return  # what it forbids may be a matter of what is not known before the step
    bench = Bench(subject)
    for sequence in under_examples(bench):
        said: list[str] = []
        lets_all_pass = True
        for _ in range(NUM_STEPS):
            if sequence.outcome != "continue":
                break
            applied = bench.step([sequence]) if sequence.tokens else bench.peek([sequence])
            if sequence.outcome == "continue":
                for drafts in _forbidden_drafts(bench, sequence, applied):
                    lets_all_pass &= len(bench.passing(sequence, drafts)) == len(drafts)
                    try:
                        _expect_possible(bench, sequence, drafts)
                    except AssertionError as error:
                        said.append(str(error))
            if not sequence.tokens:
                bench.step([sequence])
        # one that lets all pass says what the class of all modifiers does, and the host draws
        expect(lets_all_pass or not said, "; ".join(said[:1]))


def _forbidden_drafts(bench: Bench, sequence: Running, applied: Applied) -> list[list[int]]:
    """Drafts with tokens among them that were forbidden in a row, of which some may be forbidden in the next one."""
    size = len(bench.vocabulary)
    row, before = applied.of(0)[0][:size], applied.work.logits[0][:size]
    forbidden = np.flatnonzero(np.isneginf(row) & ~np.isneginf(before)).tolist()
    letters = [token_id for token_id in forbidden if 97 <= token_id < 123]
    context = [*sequence.info.prompt_token_ids[-64:], *sequence.tokens]
    likely = bench.model.ahead(context, 4)
    odd = [*letters[:2], *forbidden[:1], *forbidden[-1:]]
    left = np.flatnonzero(~np.isneginf(row))[:2].tolist()
    return [likely, likely[:1] * 4, *([*start, token_id, 98] for token_id in odd for start in ((), left[:1], left))]


def _expect_possible(bench: Bench, sequence: Running, drafts: list[int]) -> None:
    """Fail if one of those drafts that may pass is at -inf, of the model's logits and where it is the likeliest."""
    passed = bench.passing(sequence, drafts)
    work = bench.work([sequence], [passed])
    payload = bench.prepare(work)
    peaked = work.logits.copy()
    peaked[np.arange(len(passed)), passed] += 30.0
    if bench.cls.stage is Stage.POST_WARP:
        peaked = (peaked - np.log(np.exp(peaked).sum(axis=1, keepdims=True))).astype(np.float32)
    flat = np.where(np.isneginf(work.logits), -np.inf, np.float32(-7.0))
    rows = [bench.apply(work, payload, logits=logits).of(0) for logits in (work.logits, peaked, flat)]
    for k, token_id in enumerate(passed):
        if np.isneginf(work.logits[k, token_id]):
            return
        expect(
            not all(np.isneginf(row[k, token_id]) for row in rows),
            f"of the drafts {drafts} its validate lets {len(passed)} pass, but its transform forbids the token "
            f"{token_id} in place {k}",
        )
