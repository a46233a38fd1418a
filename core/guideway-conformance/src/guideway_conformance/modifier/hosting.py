"""Inputs as real hosts have them: extreme logits, half precision, long contexts, a clock that moves."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from guideway.api import DeviceBackend, Example, Payload, Stage
from numpy.typing import NDArray

from guideway_conformance.clock import HOURS, clock_moved, clock_running
from guideway_conformance.modifier.bench import REFUSALS, Bench
from guideway_conformance.modifier.comparison import alike, expect_alike
from guideway_conformance.modifier.options import of_all_sorts, repeated, texts, with_texts
from guideway_conformance.modifier.records import Running, Work
from guideway_conformance.modifier.sequences import forked
from guideway_conformance.modifier.step import OracleStep
from guideway_conformance.modifier.subject import ModifierSubject, device_classes
from guideway_conformance.modifier.verbs import Answers, expect_same_answers, read_said
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

LONG_MODEL = 131_072
PAST = 65_536 + 7
SIGNS = "?_\x7f \u00e9"
"""Tokens at the ends of the words of a mask, and one that is no ASCII."""
HALF = 0.03
"""The relative error that is let pass where hidden states come in half precision."""


def _extremes(width: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Rows of raw logits, by what is special about them."""
    rng = np.random.default_rng(1)
    noise = rng.standard_normal(width).astype(np.float32)
    yield "all equal", np.zeros(width, dtype=np.float32)
    yield "all at -60", np.full(width, -60, dtype=np.float32)
    yield "all at 60", np.full(width, 60, dtype=np.float32)
    yield "from -60 to 60", np.linspace(-60, 60, width).astype(np.float32)
    yield "one at 60 and the others at -60", np.where(np.arange(width) == 99, 60, -60).astype(np.float32)
    yield "spread over 200", (40 * noise).clip(-100, 100)


@check("modifier", tier="extended", trait="logits", acts=("rows",))
def any_logits(subject: ModifierSubject) -> None:
    """Logits may be flat or peaked, at 60 or at -60, and spread over more than 100: what comes of them is numbers or
    -inf, what was -inf stays so, and a row gets the same alone as among others."""
    for bench, work, payload in Bench.stages(subject):
        for name, row in _extremes(work.logits.shape[1]):
            for forbidding in (False, True):
                if forbidding and bench.cls.stage is Stage.PRE_WARP:
                    continue
                logits = np.repeat(row[None], len(work.logits), axis=0)
                logits[::2] = work.logits[::2]
                if forbidding:
                    logits[:, 1 :: 2 + forbidding] = -np.inf
                _expect_numbers(bench, work, payload, _at_stage(logits, bench), f"of logits {name}")


def _at_stage(logits: NDArray[Any], bench: Bench) -> NDArray[np.float32]:
    """Raw logits as a modifier of the bench's stage finds them."""
    if bench.cls.stage in (Stage.PRE_WARP, Stage.MASK):
        return logits.astype(np.float32)
    logits = logits.astype(np.float64)
    logits[:, len(bench.vocabulary) :] = -np.inf
    peak = logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - peak).sum(axis=1, keepdims=True))
    logprobs: NDArray[np.float32] = (logits - peak - total).astype(np.float32)
    return logprobs


def _expect_numbers(bench: Bench, work: Work, payload: Payload, logits: NDArray[Any], what: str) -> None:
    after = bench.apply(work, payload, logits=logits).logits
    wrong = after[np.isnan(after) | np.isposinf(after)]
    expect(len(wrong) == 0, f"{what} it made {wrong[:1]} and the like, {len(wrong)} of them")
    freed = np.isneginf(logits) & ~np.isneginf(after)
    expect(not freed.any(), f"{what} {int(freed.sum())} tokens that were at -inf are not after it")
    alone = bench.apply(work, payload.take(payload.rows[:1]), logits=logits).logits
    place = int(payload.rows[0])
    expect_alike(alone[place], after[place], f"{what} a row gets alone not what it gets among others")


@check("modifier")
def payloads_go_to_workers(subject: ModifierSubject) -> None:
    """A payload is pickled on its way to a worker: its arrays are plain NumPy arrays of numbers, and what the other
    side reads is the same."""
    for _, _, payload in Bench.stages(subject, whole=True):
        try:
            read = pickle.loads(pickle.dumps(replace(payload, faults={})))
        except Exception as error:
            raise AssertionError("its payload cannot be pickled") from error
        groups = {"rows": (payload.rows, read.rows)}
        groups |= {name: (array, read.arrays[name]) for name, array in payload.arrays.items()}
        groups |= {name: (array, read.shared[name]) for name, array in payload.shared.items()}
        for name, (sent, found) in groups.items():
            expect(sent.dtype.kind in "biuf", f"{name!r} is an array of {sent.dtype}, not of numbers")
            same = np.array_equal(sent, found, equal_nan=sent.dtype.kind == "f")
            expect(same and sent.dtype == found.dtype, f"{name!r} is another array once it was pickled")


@check("modifier", tier="extended", acts=("rows",))
def the_clock_is_nothing(subject: ModifierSubject) -> None:
    """The work of a modifier is a function of request and tokens: hours may pass between two steps, or within a call,
    and the same steps at another time of day give the same rows, end and answers of every verb."""
    for example in Bench(subject).examples:
        for what, clock in CLOCKS.items():
            _at_another_time(subject, example, what, clock)


CLOCKS: Mapping[str, Callable[[Any, int], AbstractContextManager[None]]] = {
    "with hours between its steps": lambda cls, turn: clock_moved(cls, HOURS * turn),
    "with a minute between any two looks at the clock": lambda cls, _: clock_running(cls, 60.0),
}
"""By what is special about them, clocks at the turns of a sequence."""


def _at_another_time(
    subject: ModifierSubject, example: Example, what: str, clock: Callable[[Any, int], AbstractContextManager[None]]
) -> None:
    plain, late = Bench(subject), Bench(subject)
    request = plain.request(example, 1)
    sequence = plain.begin(request)
    with clock(subject.cls, 1):
        other = late.begin(request)
    expect(sequence.companions == other.companions, f"{what} it has the companions {other.companions}")
    sequence.example = other.example = example
    for turn in range(8):
        wanted_answers, wanted = Answers.of(plain, sequence), plain.step([sequence])
        with clock(subject.cls, turn + 2):
            answers, found = Answers.of(late, other), late.step([other])
        expect_alike(found.of(0), wanted.of(0), f"{what} a sequence gets something else")
        expect_same_answers(answers, wanted_answers, f"{what} a sequence says something else")
        said = f"{what} accept says {other.outcome!r} after {turn + 1} tokens instead of {sequence.outcome!r}"
        expect(sequence.outcome == other.outcome, said)
        if sequence.outcome != "continue":
            break
    if sequence.outcome == "continue" and "fork" in subject.declared(subject.component):
        wanted_fork = forked(plain, sequence)
        with clock(subject.cls, 10):
            fork = forked(late, other)
            rows = None if fork is None else late.peek([fork]).of(0)
        if rows is not None and wanted_fork is not None:
            expect_alike(rows, plain.peek([wanted_fork]).of(0), f"{what} a fork gets something else")
    with clock(subject.cls, 11):
        names, answers = list(late.modifier.unenforced(other.state)), Answers.of(late, other, report=True)
    wanted_names = list(plain.modifier.unenforced(sequence.state))
    expect(names == wanted_names, f"{what} unenforced gives {names} instead of {wanted_names}")
    wanted_answers = Answers.of(plain, sequence, report=True)
    expect_same_answers(answers, wanted_answers, f"{what} a sequence says something else")


@check("modifier", tier="extended", trait="need:hidden_states", acts=("rows",))
def hidden_states_of_any_type(subject: ModifierSubject) -> None:
    """Hidden states come in the model's own type, float16 and bfloat16 too, with a few that are a thousand times the
    others: rows get what they get of the same numbers in float32, but for rounding."""
    for bench, work, payload in Bench.stages(subject):
        hidden = work.arrays.hidden_states.copy()
        hidden[:, 3] *= 300  # as the massive activations of real models
        half = replace(work.arrays, hidden_states=hidden.astype(np.float16))
        full = replace(half, hidden_states=half.hidden_states.astype(np.float32))
        results = [bench.apply(replace(work, arrays=arrays), payload) for arrays in (half, full)]
        _expect_close(results[0].of, results[1].of, len(work.sequences), "of hidden states in float16")
    torch = [cls for cls in device_classes(builtin_only=True) if cls.arrays == "torch" and cls.available() is None]
    wanted = subject.transform_class().arrays
    if torch and (not wanted or "torch" in wanted):
        _bfloat16(subject, torch[0]("cpu"))


def _bfloat16(subject: ModifierSubject, device: DeviceBackend) -> None:
    import torch

    bench = Bench(subject, device=device)
    crowd = bench.crowd()
    work = bench.work(crowd)
    payload = bench.prepare(work)
    plain = bench.step_of
    rounded = torch.from_numpy(work.arrays.hidden_states).to(torch.bfloat16).float().numpy()
    full = bench.apply(replace(work, arrays=replace(work.arrays, hidden_states=rounded)), payload)

    class Bfloat16Step(OracleStep):
        def hidden_states(self, rows: Any) -> Any:
            return super().hidden_states(rows).to(torch.bfloat16)

    def step_of(work: Work, transform: Any, num_entries: int) -> OracleStep:
        made = plain(work, transform, num_entries)
        made.__class__ = Bfloat16Step
        return made

    bench.step_of = step_of  # type: ignore[method-assign]
    half = bench.apply(work, payload)
    _expect_close(half.of, full.of, len(crowd), "of hidden states in bfloat16")


def _expect_close(found: Callable[[int], Any], wanted: Callable[[int], Any], size: int, what: str) -> None:
    for i in range(size):
        one, other = found(i), wanted(i)
        if one.dtype.kind == "i":
            continue  # a draw may fall the other way
        expect(not np.isnan(one).any(), f"{what} it made NaN")
        close = np.isclose(one, other, rtol=HALF, atol=HALF, equal_nan=True).mean(axis=-1) > 0.9
        expect(close.all(), f"{what} a row gets something else than of the same numbers in float32")


@check("modifier", tier="stress", acts=("rows",), seconds=60)
def full_contexts(subject: ModifierSubject) -> None:
    """A sequence may fill the context to `max_model_len`, past position 65,536 too, with drafts, and a row after drafts
    gets there what it gets without them."""
    bench = Bench(subject, max_model_len=LONG_MODEL)
    for number, example in enumerate(bench.examples):
        request = bench.request(example, number)
        for length in (PAST - 10, LONG_MODEL - 20):
            prompt = (request.prompt_token_ids * (length // len(request.prompt_token_ids) + 1))[:length]
            long = replace(request, prompt_token_ids=prompt)
            slow, fast = bench.begin(long, slot=1), bench.begin(long, slot=2)
            slow.example = fast.example = example
            rows: list[NDArray[Any]] = []
            while slow.outcome == "continue" and len(rows) < 18:
                rows.append(bench.step([slow]).of(0))
            if "forecasts" in subject.traits(subject.component) and rows:
                found = bench.peek([fast], [slow.tokens[: len(rows) - 1][:16]]).of(0)
                for k, row in enumerate(found):
                    expect_alike(row[None], rows[k], f"{length + k} tokens into a sequence, after {k} drafts")
            for sequence in (slow, fast):
                bench.release(sequence)


@check("modifier", tier="stress", trait="logits", seconds=120)
def no_count_is_too_large(subject: ModifierSubject) -> None:
    """A sequence may have more than 65,536 tokens, generated ones or those of a prompt: where its text repeats itself
    and its rows are the same before the 32,768th or the 65,536th of them, and the same after it, nothing changes there.
    """
    for number in range(len(Bench(subject).examples)):
        for edge in EDGES:
            _nothing_changes(subject, number, edge)
        bench = Bench(subject, max_model_len=LONG_MODEL)
        sequence = bench.start(number)
        give_up = time.process_time() + HEARING
        for edge in EDGES:
            rows = []
            for length in (edge + beside for beside in BESIDE):
                while sequence.outcome == "continue" and len(sequence.tokens) < length:
                    ahead = _repeated(length)[len(sequence.tokens) :][: 1 if bench.cls.derived else CHUNK]
                    if bench.cls.derived:
                        sequence.tokens = list(_repeated(length))
                    else:
                        bench.accept(sequence, ahead, None)
                    if time.process_time() > give_up:  # it may look at each token for each
                        return
                if sequence.outcome != "continue":
                    break
                rows.append(_plain_row(bench, sequence))
            _expect_no_edge(rows, f"the {edge:,}th generated token")


EDGES = (32_768, 65_536)
"""The numbers past which a count in 16 bits is another one."""
BESIDE = (-256, -128, 128, 256)
"""The distances from an edge at which rows are compared."""
CHUNK = 64
HEARING = 1.0
"""The seconds after which a sequence is given up that hears tokens slowly."""


def _repeated(length: int) -> list[int]:
    return [97, 98, 99, 100] * (length // 4)


def _nothing_changes(subject: ModifierSubject, number: int, edge: int) -> None:
    """The same of a prompt."""
    bench = Bench(subject, max_model_len=LONG_MODEL)
    rows = []
    for beside in BESIDE:
        request = replace(
            bench.request(bench.examples[number], number), prompt_token_ids=tuple(_repeated(edge + beside))
        )
        try:
            sequence = bench.begin(request)
        except REFUSALS:
            return
        rows.append(_plain_row(bench, sequence))
        bench.release(sequence)
    _expect_no_edge(rows, f"the {edge:,}th token of a prompt")


def _plain_row(bench: Bench, sequence: Running) -> NDArray[Any]:
    """The result for a row whose logits and hidden states say nothing of its place."""
    work = bench.work([sequence])
    rng = np.random.default_rng(0)
    logits = _at_stage(rng.standard_normal(work.logits.shape), bench)
    hidden = rng.standard_normal(work.arrays.hidden_states.shape).astype(np.float32)
    bitmask = np.ones_like(work.arrays.bitmask)
    plain = replace(work, logits=logits, arrays=replace(work.arrays, hidden_states=hidden, bitmask=bitmask))
    return bench.apply(plain, bench.prepare(plain)).of(0)


def _expect_no_edge(rows: Sequence[NDArray[Any]], edge: str) -> None:
    if len(rows) == len(BESIDE) and alike(rows[0], rows[1]) and alike(rows[2], rows[3]):
        expect(alike(rows[1], rows[2]), f"at {edge} something changes, and neither before nor after")


@check("modifier", tier="extended", seconds=60)
def what_start_takes_is_served(subject: ModifierSubject) -> None:
    """A request that `start` takes is served: whatever signs the texts in its options have, and however long texts and
    lists are, of the same entries or of others, no later call raises, and its report is small."""
    bench = Bench(subject)
    for number, example in enumerate(bench.examples):
        for options, generated in _strange(example):
            strange = replace(example, options=options, generated=generated)
            try:
                sequence = bench.begin(bench.request(strange, number))
            except Exception:  # options that nobody promised to understand
                continue
            if sequence.state is None:
                continue
            sequence.example = strange
            shown = repr(options)
            said = f"it took the options {shown[:200]}{'...' if len(shown) > 200 else ''}, and then failed over them"
            _serve(bench, sequence, min(len(generated), MOST_STEPS), said)
        for key, value in example.options.items():
            if value and isinstance(value, str | list | tuple):
                _serve_longer(bench, example, key, number, repeated)
                if not isinstance(value, str):
                    _serve_longer(bench, example, key, number, of_all_sorts)


def _serve_longer(bench: Bench, example: Example, key: str, number: int, longer_by: Callable[[Any, int], Any]) -> None:
    """Serve requests whose option `key` is longer each time, as long as that is no matter of seconds."""
    value = example.options[key]
    taken, before = 0.0, len(value)
    longer = [length * (3 if isinstance(value, str) else 1) for length in LENGTHS]
    own = len(value)  # twice, since the first one has to load what is used
    for length in (own, own, *(length for length in longer if length > own)):
        if before < length and taken * (length / before) ** 2 > PATIENCE:
            return
        long = replace(example, options={**example.options, key: longer_by(value, length)})
        began = time.process_time()
        try:
            sequence = bench.begin(bench.request(long, number))
        except Exception:  # a length that nobody promised to serve
            return
        if sequence.state is None:
            return
        sequence.example = long
        _serve(bench, sequence, 2, f"it took {length} entries of the option {key!r}, and then failed over them")
        taken, before = time.process_time() - began, length


def _serve(bench: Bench, sequence: Running, most: int, said: str) -> None:
    """Run `sequence` for `most` tokens, and read what it says in the end; fail with `said` if anything raises."""
    try:
        while sequence.outcome == "continue" and len(sequence.tokens) < most:
            bench.step([sequence], bench.drafts([sequence], turn=3))
        read_said(bench.modifier, sequence.state)
        bench.release(sequence)
    except Exception as error:
        raise AssertionError(said) from error


MOST_STEPS = 12
LENGTHS = (8, 40, 200, 900, 1_500)
"""The entries of long lists; long texts have three times as many signs."""
PATIENCE = 3.0
"""The seconds that long options may take, if it takes four times as long over what is twice as long."""


def _strange(example: Example) -> Iterator[tuple[dict[str, Any], tuple[int, ...]]]:
    """Options of texts that are special in one way, each with the tokens of such a text: signs of all sorts, and each
    of them alone or in place of the last one."""
    options = dict(example.options)
    spelled = b"".join(texts(options))[:MOST_STEPS]
    changes: list[tuple[Callable[[str], str], bytes]] = [(lambda _: SIGNS, SIGNS.encode())]
    for sign in SIGNS:
        changes += [
            (lambda _, sign=sign: sign, sign.encode() * 4),  # type: ignore[misc]
            (lambda text, sign=sign: text[:-1] + sign, spelled[:-1] + sign.encode()),  # type: ignore[misc]
        ]
    for change, written in changes:
        changed = with_texts(options, change)
        if changed != options:
            yield changed, tuple(written)
