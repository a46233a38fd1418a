"""Long sequences, wide vocabularies, other processes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from guideway.api import Vocabulary
from guideway.api.bitmask import num_words

from guideway_conformance.isolation import HOST_VARIABLE
from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.comparison import expect_alike
from guideway_conformance.modifier.subject import MAX_NUM_SEQUENCES, ModifierSubject
from guideway_conformance.modifier.verbs import Answers
from guideway_conformance.modifier.vocabulary import PADDING, bordered, permuted, synthetic
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.target import Target

LONG = 1000
LONG_PROMPT = 10_000
WIDE = 131_072
FEWER = 23
VOCABULARIES: dict[str, Callable[[], Vocabulary]] = {
    "synthetic": synthetic,
    "permuted": permuted,
    "fewer": lambda: synthetic(len(synthetic()) - FEWER, PADDING + FEWER),
}
"""Vocabularies whose logits are of one width."""


@check("modifier", tier="extended")
def any_width(subject: ModifierSubject) -> None:
    """The logits have as many columns as the vocabulary has tokens, or more, and a token may have any place in it, be
    it at the border of a word of a bitmask."""
    vocabularies = [synthetic(*sizes) for sizes in ((1000, 0), (1001, 1), (977, 300), (992, 32), (991, 33))]
    for vocabulary in (*vocabularies, bordered()):
        bench = Bench(subject, vocabulary=vocabulary)
        for num_steps in (0, 3):
            crowd = bench.crowd(num_steps=num_steps)
            work = bench.work(crowd, [[97, 300][: i % 3] for i in range(len(crowd))])
            payload = bench.prepare(work)
            bench.apply(work, payload)
            if payload is None:
                continue
            if (name := bench.transform.bitmask) is not None:
                shape, wanted = payload.arrays[name].shape, (len(payload), num_words(vocabulary.logits_width))
                expect(shape == wanted, f"with {vocabulary.logits_width} columns {name!r} is of {shape}, not {wanted}")


@check("modifier", tier="stress", seconds=60)
def wide_vocabularies(subject: ModifierSubject) -> None:
    """A vocabulary may have 131,072 tokens."""
    bench = Bench(subject, vocabulary=synthetic(WIDE, 0))
    bench.peek(bench.crowd(3, num_steps=1))


@check("modifier", tier="stress", seconds=60, acts=("rows",))
def full_batches(subject: ModifierSubject) -> None:
    """As many sequences as the context says may run at once, each with drafts."""
    bench = Bench(subject)
    sequences = [bench.start(number) for number in range(MAX_NUM_SEQUENCES)]
    for turn in range(4):
        running = [sequence for sequence in sequences if sequence.outcome == "continue"]
        if running:
            bench.step(running, bench.drafts(running, turn))


@check("modifier", tier="stress", seconds=60, acts=("rows",))
def long_prompts(subject: ModifierSubject) -> None:
    """A prompt may have ten thousand tokens."""
    bench = Bench(subject)
    for number, example in enumerate(bench.examples):
        request = bench.request(example, number)
        long = tuple(97 + i % 26 for i in range(LONG_PROMPT))
        sequence = bench.begin(replace(request, prompt_token_ids=long))
        sequence.example = example
        while sequence.outcome == "continue" and len(sequence.tokens) < 8:
            bench.step([sequence])


@check("modifier", tier="stress", seconds=300, acts=("hears",))
def long_sequences(subject: ModifierSubject) -> None:
    """A sequence may have a thousand tokens, and is rebuilt from them."""
    for number in range(len(Bench(subject).examples)):
        bench, fresh = Bench(subject), Bench(subject)
        sequence = bench.start(number)
        while sequence.outcome == "continue" and len(sequence.tokens) < LONG:
            bench.step([sequence])
        if sequence.outcome == "continue":
            found, wanted = fresh.peek([fresh.again(sequence)]), bench.peek([sequence])
            expect_alike(found.of(0), wanted.of(0), f"rebuilt after {LONG} tokens")


@check("modifier", tier="stress", seconds=120)
def any_process(subject: ModifierSubject) -> None:
    """In another process the same requests and tokens lead to the same, so that state can be rebuilt anywhere."""
    found = [_elsewhere(subject, hash_seed, ["synthetic"]) for hash_seed in ("1", "2")]
    expect(found[0] == found[1], "in two processes the same requests got other results")


@check("modifier", tier="stress", seconds=120)
def any_vocabulary_beside_another(subject: ModifierSubject) -> None:
    """A process may have instances of several vocabularies, of other tokens, of other sizes and padded to one width:
    what one finds in its own is nothing to another."""
    alone = _elsewhere(subject, "1", ["permuted"])
    beside = _elsewhere(subject, "1", ["fewer", "synthetic", "permuted"])
    expect(alone == beside, "an instance got other results where one of another vocabulary had been built before")


def _elsewhere(subject: ModifierSubject, hash_seed: str, vocabularies: list[str]) -> str | None:
    """The results of another process with an instance of the last of these vocabularies, after one of each before.
    None for a class made by a function: another process cannot find it."""
    try:
        target = Target.of_class(subject.cls, subject.settings)
        found_by_name = target.load() is subject.cls
    except (TypeError, AttributeError):
        found_by_name = False
    if not found_by_name:
        return None
    path = [entry or str(Path.cwd()) for entry in sys.path]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONHASHSEED": hash_seed,
        HOST_VARIABLE: "1",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"from {__name__} import report; report()"],
        input=json.dumps([target.to_json(), vocabularies]),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    last = done.stderr.strip().splitlines()[-1:]
    expect(done.returncode == 0, f"in a process of its own it failed: {last}")
    return done.stdout


def report() -> None:
    """The other process: target and vocabularies on standard input, a digest of what sequences get with the last of
    these on standard output."""
    given, names = json.load(sys.stdin)
    target = Target.from_json(given)
    kept: list[Bench] = []
    for name in names:
        kept.append(Bench(ModifierSubject(target.load(), target.settings), vocabulary=VOCABULARIES[name]()))
        digest = hashlib.sha256()
        for part in _results(kept[-1]):
            digest.update(part)
    sys.stdout.write(digest.hexdigest())


def _results(bench: Bench) -> Iterator[bytes]:
    sequences = [bench.start(number) for number in range(max(3, len(bench.examples)))]
    for turn in range(8):
        if not sequences:
            return
        applied = bench.step(sequences, bench.drafts(sequences, turn))
        for i in range(len(sequences)):
            yield applied.of(i).tobytes()
        over = [sequence for sequence in sequences if sequence.outcome != "continue" or turn == 7]
        for sequence in over:
            yield repr(Answers.of(bench, sequence, report=True)).encode()
        sequences = [sequence for sequence in sequences if sequence.outcome == "continue"]
