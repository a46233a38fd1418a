"""Checks of what the class says of itself, and whether it is alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from guideway.api import Example, LogitModifier, LogitTransform, Need, Sampler, Stage
from guideway.api.steps import GRAMMAR_MASK, MAX_FEEDBACK_BYTES_PER_ROW
from guideway.plugins.contract import check_built

from guideway_conformance.modifier.bench import REFUSALS, Bench
from guideway_conformance.modifier.records import Running
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.modifier.vocabulary import synthetic
from guideway_conformance.registry import check
from guideway_conformance.subjects import NotPerformed, expect

DOZEN = 12
NUM_PROMPTS = 3
"""The prompts that an example may have to act on."""


@check("modifier", tier="smoke")
def says_what_it_is(subject: ModifierSubject) -> None:
    """A modifier declares a name of its own, a stage, its needs, and a class of transforms."""
    cls: Any = subject.cls
    name = getattr(cls, "name", None)
    expect(isinstance(name, str) and name, f"its name is {name!r}, not a text")
    expect(name != GRAMMAR_MASK, f"it is called {name!r}, which is reserved for the grammar mask")
    stage = getattr(cls, "stage", None)
    expect(isinstance(stage, Stage), f"its stage is {stage!r}, not a Stage")
    expect(
        isinstance(cls.needs, frozenset) and all(isinstance(need, Need) for need in cls.needs),
        f"its needs are {cls.needs!r}, not a frozenset of Need",
    )
    expect(isinstance(cls.derived, bool), f"derived is {cls.derived!r}, neither True nor False")
    transform = getattr(cls, "transform", None)
    expect(
        isinstance(transform, type) and issubclass(transform, LogitTransform),
        f"its transform is {transform!r}, not a class of LogitTransform",
    )


@check("modifier", tier="smoke")
def gives_examples(subject: ModifierSubject) -> None:
    """Its examples are of the class `Example`, at least one, with options that it acts on."""
    examples = subject.examples()
    expect(
        isinstance(examples, Sequence) and len(examples) > 0 and all(isinstance(e, Example) for e in examples),
        f"`examples` is {examples!r}, not a sequence of Example",
    )
    for example in examples:
        expect(isinstance(example.options, Mapping), f"the options of {example!r} are no mapping")
        for token_ids in (example.prompt_token_ids, example.generated):
            expect(
                token_ids is None or (isinstance(token_ids, tuple) and all(isinstance(t, int) for t in token_ids)),
                f"{token_ids!r} in {example!r} is no tuple of token ids",
            )
        expect(example.prompt_token_ids != (), f"the prompt of {example!r} is empty")
        expect(
            example.logits is None or all(np.isfinite(value) for value in example.logits.values()),
            f"the logits of {example!r} are not finite",
        )
    expect(Bench(subject).examples, "no example gives a state")


@check("modifier")
def every_example_acts(subject: ModifierSubject) -> None:
    """Each of its examples that is not refused makes it act within the first dozen tokens: it gives a state, and
    edits the prompt, changes or draws a row, forces tokens, lets drafts not pass, ends the text or reports."""
    for i, example in enumerate(subject.examples()):
        bench = Bench(subject)
        bench.examples = [example]
        for number in range(NUM_PROMPTS):
            try:
                sequence = bench.start(number)
            except REFUSALS:
                break
            if sequence.state is not None and _acts(bench, sequence):
                break
            bench.release(sequence)
        else:
            said = f"example {i} of its `examples` (or `requests` in conformance.toml), {dict(example.options)!r}"
            expect(sequence.state is not None, f"it selects the modifier, and is left without a state: {said}")
            raise NotPerformed(
                f"within {DOZEN} tokens nothing came of {said}. Leave it out, or change it so that it acts"
            )


def _acts(bench: Bench, sequence: Running) -> bool:
    """Return whether `sequence` shows within a dozen tokens that there is a modifier."""
    if bench.cls.edit_prompt is not LogitModifier.edit_prompt:
        token_ids, prefix = bench.modifier.edit_prompt(sequence.request)
        if prefix or tuple(token_ids) != sequence.request.prompt_token_ids:
            return True
    for _ in range(DOZEN):
        acted = bench.subject.evidence.acted
        if bench.modifier.forced(sequence.state, 1) or bench.modifier.validate(sequence.state, (97, 98)) < 2:
            return True
        bench.step([sequence], bench.drafts([sequence], turn=3))
        if bench.subject.evidence.acted > acted or sequence.outcome != "continue":
            return True
    return bench.modifier.report(sequence.state) is not None


@check("modifier", tier="smoke")
def takes_a_step(subject: ModifierSubject) -> None:
    """A sequence starts, is prepared, modified and heard."""
    bench = Bench(subject)
    sequence = bench.start(0)
    applied = bench.step([sequence])
    expect(
        applied.logits.shape == applied.work.logits.shape,
        f"of logits {applied.work.logits.shape} it made {applied.logits.shape}",
    )
    bench.release(sequence)


@check("modifier", tier="smoke")
def a_sampler_owns_the_draw(subject: ModifierSubject) -> None:
    """At Stage.SAMPLE the transform is a Sampler, and at no other."""
    is_sampler = issubclass(subject.transform_class(), Sampler)
    stage = subject.cls.stage
    name = subject.transform_class().__name__
    expect(
        is_sampler == (stage is Stage.SAMPLE),
        f"it acts at stage {stage.value!r}, and its transform {name} is {'a' if is_sampler else 'no'} Sampler",
    )


@check("modifier")
def has_nothing_of_an_earlier_contract(subject: ModifierSubject) -> None:
    """Once built it has no attribute that an earlier contract had and that nobody reads now, such as `order`."""
    check_built("modifier", subject.modifier(synthetic()))


@check("modifier")
def a_key_goes_with_what_is_compiled(subject: ModifierSubject) -> None:
    """`compile_key` is overridden only where `compile` is."""
    compiles, keys = (
        getattr(subject.cls, name) is not getattr(LogitModifier, name) for name in ("compile", "compile_key")
    )
    expect(compiles or not keys, "it overrides compile_key without compile, and is never asked for a key")


@check("modifier")
def arrays_are_names(subject: ModifierSubject) -> None:
    """`arrays` is a frozenset of names of array libraries."""
    arrays: Any = subject.transform_class().arrays
    expect(
        isinstance(arrays, frozenset) and all(isinstance(name, str) for name in arrays),
        f"`arrays` is {arrays!r}",
    )


@check("modifier")
def emits_fits(subject: ModifierSubject) -> None:
    """`emits` gives shape per row and dtype of each feedback, at most 4 KiB per row in all."""
    size = 0
    for name, (shape, dtype) in subject.transform_class().emits.items():
        expect(
            isinstance(shape, tuple) and all(isinstance(n, int) and n >= 0 for n in shape),
            f"the shape per row of {name!r} is {shape!r}",
        )
        size += np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
    expect(
        size <= MAX_FEEDBACK_BYTES_PER_ROW,
        f"it emits {size} bytes per row; the limit is {MAX_FEEDBACK_BYTES_PER_ROW}",
    )


@check("modifier", trait="need:history")
def history_has_a_length(subject: ModifierSubject) -> None:
    """A transform whose modifier needs the history says how many earlier token ids it holds."""
    length: Any = subject.transform_class().history_length
    expect(isinstance(length, int) and length > 0, f"its modifier needs the history, but history_length is {length}")


@check("modifier")
def masks_say_what_they_are(subject: ModifierSubject) -> None:
    """`bitmask` names an array, at Stage.MASK; a transform with one, or that is `hard`, emits nothing."""
    transform: Any = subject.transform_class()
    expect(
        transform.bitmask is None or isinstance(transform.bitmask, str),
        f"`bitmask` is {transform.bitmask!r}, neither None nor the name of an array",
    )
    for name in ("hard", "idempotent"):
        value = getattr(transform, name)
        expect(isinstance(value, bool), f"`{name}` is {value!r}, neither True nor False")
    stage = subject.cls.stage
    expect(
        transform.bitmask is None or stage is Stage.MASK,
        f"it acts at stage {stage.value!r}, and its transform {transform.__name__} declares a bitmask",
    )
    expect(
        not transform.emits or not (transform.hard or transform.bitmask),
        f"it emits {', '.join(sorted(transform.emits))}, and may be applied twice in a step or not be called",
    )
