"""Checks of what a transform needs beyond logits and payload, and of what it sends back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from guideway.api import Companion, Feedback, Need, Sampler, UnsupportedCapability

from guideway_conformance.modifier.bench import REFUSALS, Bench
from guideway_conformance.modifier.comparison import expect_alike
from guideway_conformance.modifier.records import Running
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.modifier.verbs import Answers, expect_same_answers
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.threads import amid

MOST = 40
"""The tokens after which a sequence is not expected to end."""


@check("modifier", acts=("rows",))
def reads_what_it_declares(subject: ModifierSubject) -> None:
    """A transform reads nothing of the step but `ops`, `positions` and what its modifier declares in `needs`."""
    try:
        for bench, work, payload in Bench.stages(subject):
            bench.apply(work, payload)
    except UnsupportedCapability as error:
        raise AssertionError(str(error)) from error


@check("modifier")
def uses_what_hosts_serve(subject: ModifierSubject) -> None:
    """A modifier uses nothing that every host refuses: it does not need SCHEDULER_DRAW, and where its sampler has a
    `verify`, it needs DRAFTS, and nowhere else."""
    needs, transform = subject.cls.needs, subject.transform_class()
    expect(Need.SCHEDULER_DRAW not in needs, "it needs SCHEDULER_DRAW, which no host offers yet")
    verifies = issubclass(transform, Sampler) and transform.verify is not Sampler.verify
    said = "has a `verify`, and does not declare" if verifies else "has no `verify`, and declares"
    expect(verifies == (Need.DRAFTS in needs), f"its transform {said} Need.DRAFTS")


@check("modifier", trait="need:feedback", acts=("feedback",))
def emits_what_it_declares(subject: ModifierSubject) -> None:
    """A transform emits all of its `emits` for each entry of the payload, of the declared shape and dtype, whose
    width may be another."""
    for bench, work, payload in Bench.stages(subject):
        halves = [payload.rows[::2], payload.rows[1::2]]
        for parts in (None, halves, [payload.rows[:1]]):
            applied = bench.apply(work, payload, parts=parts)
            for name, (_, dtype) in bench.transform.emits.items():
                emitted = applied.emitted[name].dtype
                expect(
                    np.can_cast(emitted, np.dtype(dtype), "same_kind"),
                    f"it declares {name!r} as {dtype} and emits {emitted}",
                )


@check("modifier", trait="need:feedback")
def feedback_is_of_its_row(subject: ModifierSubject) -> None:
    """An emitted entry depends on that entry alone, whatever else is in the call."""
    for bench, work, payload in Bench.stages(subject):
        whole = bench.apply(work, payload)
        for parts in ([payload.rows[1::2], payload.rows[::2]], [payload.rows[i : i + 1] for i in range(len(payload))]):
            found = bench.apply(work, payload, parts=parts)
            for name, array in whole.emitted.items():
                order, wanted = np.argsort(found.rows), np.argsort(whole.rows)
                expect(
                    np.allclose(found.emitted[name][order], array[wanted], rtol=1e-3, atol=1e-4, equal_nan=True),
                    f"applied in {len(parts)} calls it emits another {name!r}",
                )


@check("modifier", trait="need:feedback")
def feedback_may_be_missing(subject: ModifierSubject) -> None:
    """`accept` is given None for feedback where the transform did not act on every row, as for tokens that a grammar
    forced; a sequence goes on, and is rebuilt, with and without."""
    for number in range(max(2, len(Bench(subject).examples))):
        bench, other = Bench(subject), Bench(subject)
        sequence = bench.start(number)
        for turn in range(6):
            if sequence.outcome != "continue":
                break
            if turn % 2:
                bench.step([sequence])
                continue
            context = [*sequence.info.prompt_token_ids, *sequence.tokens]
            bench.accept(sequence, bench.model.ahead(context, 1 + turn // 2), None)
        if sequence.outcome == "continue":
            what = "a state rebuilt from tokens, some of them without feedback, gets something else"
            again = other.again(sequence)
            expect_alike(other.peek([again]).of(0), bench.peek([sequence]).of(0), what)
            answers = [Answers.of(of, each, report=True) for of, each in ((other, again), (bench, sequence))]
            expect_same_answers(answers[0], answers[1], what)


@check("modifier", trait="need:feedback", acts=("feedback",))
def feedback_comes_for_steps_of_any_size(subject: ModifierSubject) -> None:
    """Several tokens of a step come with the feedback of each, in order, or without any, and lead where they lead one
    by one: to the end too, which may be amid them."""
    for number in range(max(2, len(Bench(subject).examples))):
        for told in (True, False):
            _several_at_once(subject, number, told=told, offers=True)
        _several_at_once(subject, number, told=True, offers=False)
    _ends_amid_a_step(subject)


def _ends_amid_a_step(subject: ModifierSubject) -> None:
    """A sequence that ends with a token ends as well if others come with it, in the same step."""
    lives = []
    for number in range(3 * len(Bench(subject).examples)):
        single = Bench(subject)
        sequence = single.start(number)
        while sequence.outcome == "continue" and len(sequence.tokens) < MOST:
            single.step([sequence])
        lives.append((number, sequence))
    for number, slow in lives:
        if slow.outcome == "continue":
            continue
        for i, after in enumerate(_told(subject, slow)):
            fast_bench = Bench(subject)
            fast = fast_bench.start(number)
            first = max(0, len(slow.journal) - 1 - i % 3)
            for token_ids, feedback in slow.journal[:first]:
                fast_bench.accept(fast, token_ids, feedback)
            step = [*slow.journal[first:], ([97], after)]
            token_ids = [token_id for ids, _ in step for token_id in ids]
            fast_bench.accept(fast, token_ids, _joined([given for _, given in step]))
            said = f"of {len(token_ids)} tokens in a step the one before the last ends the sequence, as it does alone"
            expect(fast.outcome == slow.outcome, f"{said}, but accept says {fast.outcome!r}, not {slow.outcome!r}")


def _told(subject: ModifierSubject, ended: Running) -> Iterator[Feedback]:
    """The feedback of a token of a sequence that ended, as its transform emits it of different logits: none but what
    that sequence may be told."""
    bench = Bench(subject)
    sequence = bench.again(ended, hears=False)
    sequence.tokens = []
    for token_ids, feedback in ended.journal[:-1]:
        bench.accept(sequence, token_ids, feedback)
    work = bench.work([sequence])
    payload = bench.prepare(work)
    for logits in bench.other_logits(work):
        if (feedback := bench.feedback(bench.apply(work, payload, logits=logits), 0, 1)) is not None:
            yield feedback


def _several_at_once(subject: ModifierSubject, number: int, *, told: bool, offers: bool) -> None:
    """Compare a sequence that hears several tokens in a step, with their feedback if `told`, and one that does not. If
    `offers`, they come as drafts, as many as it lets pass."""
    single, several = Bench(subject), Bench(subject)
    slow, fast = single.start(number), several.start(number)
    while slow.outcome == "continue" and len(slow.tokens) < 9:
        if told:
            single.step([slow])
        else:
            single.accept(slow, single.final(single.peek([slow]), 0), None)
    sizes: list[int] = []
    while fast.outcome == "continue" and len(fast.tokens) < len(slow.tokens):
        ahead = slow.journal[len(fast.tokens) :][: 2 + len(sizes)]
        passed = [token_ids[0] for token_ids, _ in ahead[:-1]]
        sizes.append(1 + len(several.passing(fast, passed) if offers else passed))
        heard = ahead[: sizes[-1]]
        several.accept(fast, [token_ids[0] for token_ids, _ in heard], _joined([given for _, given in heard]))
    heard_of = "tokens and their feedback" if told else "tokens without feedback"
    what = f"{heard_of}, heard in steps of {sizes}, lead elsewhere than one by one"
    if slow.outcome == fast.outcome == "continue":
        expect_alike(several.peek([fast]).of(0), single.peek([slow]).of(0), what)
    if len(fast.tokens) == len(slow.tokens):
        said = f"{what}: accept says {fast.outcome!r} instead of {slow.outcome!r}"
        expect(fast.outcome == slow.outcome, said)
        answers = [Answers.of(of, each, report=True) for of, each in ((several, fast), (single, slow))]
        expect_same_answers(answers[0], answers[1], what)


def _joined(given: list[Feedback | None]) -> Feedback | None:
    """The feedback of several tokens, as one step gives it."""
    known = [feedback for feedback in given if feedback is not None]
    if len(known) < len(given):
        return None
    return {name: np.concatenate([feedback[name] for feedback in known]) for name in known[0]}


@check("modifier", trait="need:companions")
def companions_are_prompts(subject: ModifierSubject) -> None:
    """`companions` gives sequences to run beside each of a request, with prompts of the vocabulary."""
    bench = Bench(subject)
    for number, example in enumerate(bench.examples):
        found = bench.modifier.companions(bench.request(example, number))
        expect(isinstance(found, list | tuple), f"companions gave a {type(found).__name__}, not a list")
        for companion in found:
            expect(isinstance(companion, Companion), f"one of its companions is a {type(companion).__name__}")
            ids = companion.prompt_token_ids
            expect(len(ids) > 0, "a companion has an empty prompt")
            wrong = [i for i in ids if not isinstance(i, int | np.integer) or not 0 <= i < len(bench.vocabulary)]
            expect(not wrong, f"a companion's prompt has {wrong[:1]}; token ids are 0..{len(bench.vocabulary) - 1}")


@check("modifier", trait="need:companions", seconds=60)
def companions_serve_several_threads(subject: ModifierSubject) -> None:
    """`companions` may be called from several threads at once, and gives the same for the same request: whatever was
    asked before, and at the same time."""
    asked, fresh = Bench(subject), Bench(subject)
    requests = [asked.request(example, number) for number, example in enumerate([*asked.examples, *asked.examples])]
    others = [*requests[1:], asked.request(None, len(requests))]
    for request, other in zip(requests, others, strict=True):
        wanted = tuple(fresh.modifier.companions(request))
        ask, beside = (partial(asked.modifier.companions, each) for each in (request, other))
        for found in (ask(), *amid(subject.cls, ask, beside)):
            expect(
                tuple(found) == wanted,
                f"beside another request one has the companions {list(found)} instead of {list(wanted)}",
            )


@check("modifier", trait="need:companions")
def no_companions_for_others(subject: ModifierSubject) -> None:
    """A request the modifier leaves alone has no companions."""
    bench = Bench(subject)
    request = bench.request(None, 0)
    found = bench.modifier.companions(request)
    try:
        sequence = bench.begin(request)
    except REFUSALS:
        return
    expect(sequence.state is not None or not found, f"for a request it leaves alone it wants {len(found)} companions")
