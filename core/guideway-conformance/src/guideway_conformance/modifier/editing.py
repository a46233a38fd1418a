"""Checks of modifiers that edit the prompt."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from guideway.api import LogitModifier, Need, Request

from guideway_conformance.modifier.bench import REFUSALS, Bench
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.threads import amid

MAX_BYTES = 1024
"""Most bytes that hosts let an output begin with."""


@check("modifier")
def an_edit_of_prompts_is_declared(subject: ModifierSubject) -> None:
    """A modifier that overrides `edit_prompt` declares Need.EDIT_PROMPT, and no other does."""
    declares, overrides = (
        Need.EDIT_PROMPT in subject.cls.needs,
        subject.cls.edit_prompt is not LogitModifier.edit_prompt,
    )
    said = "has `edit_prompt`, which no host calls without" if overrides else "has no `edit_prompt`, and declares"
    expect(declares == overrides, f"it {said} Need.EDIT_PROMPT")


@check("modifier", trait="need:edit_prompt")
def edits_are_prompts_and_bytes(subject: ModifierSubject) -> None:
    """`edit_prompt` gives a prompt of the vocabulary and bytes, at most 1024, that its tokens can write, or refuses the
    request, however short its prompt is and whatever tokens it ends with."""
    bench = Bench(subject)
    size = len(bench.vocabulary)
    for request in _requests(bench):
        try:
            found = bench.modifier.edit_prompt(request)
        except REFUSALS:
            continue
        expect(isinstance(found, tuple) and len(found) == 2, f"it gave {found!r}, which are not token ids and bytes")
        token_ids, prefix = found
        expect(len(token_ids) > 0, f"of the prompt {request.prompt_token_ids} it leaves no token")
        wrong = [i for i in token_ids if not isinstance(i, int) or not 0 <= i < size]
        expect(not wrong, f"its prompt has {wrong[:1]}; token ids are 0..{size - 1}")
        expect(isinstance(prefix, bytes), f"what outputs begin with is a {type(prefix).__name__}, not bytes")
        expect(len(prefix) <= MAX_BYTES, f"outputs are to begin with {len(prefix)} bytes")
        expect(_can_write(bench.vocabulary.tokens, prefix), f"no tokens write {prefix!r}, which outputs begin with")


@check("modifier", trait="need:edit_prompt", seconds=60)
def edits_depend_on_the_request(subject: ModifierSubject) -> None:
    """`edit_prompt` gives the same for the same request, which it does not change: whatever was asked before, and at
    the same time in another thread."""
    asked, fresh = Bench(subject), Bench(subject)
    requests = [asked.request(example, number) for number, example in enumerate([*asked.examples, *asked.examples])]
    for request, other in zip(requests, [*requests[1:], requests[0]], strict=True):
        before = copy.deepcopy(request)
        wanted = _plain(fresh.modifier.edit_prompt(request))
        expect(request == before, "it changed the request")
        ask, beside = (partial(asked.modifier.edit_prompt, each) for each in (request, other))
        for found in (ask(), *amid(subject.cls, ask, beside)):
            expect(_plain(found) == wanted, f"beside another request one is edited to {found!r} instead of {wanted!r}")


def _plain(edit: tuple[Sequence[int], bytes]) -> tuple[tuple[int, ...], bytes]:
    return tuple(edit[0]), edit[1]


def _requests(bench: Bench) -> Iterator[Request]:
    """Yield requests with the usual prompts of each example, their beginnings, and each with a special token last."""
    for number, example in enumerate(bench.examples):
        request = bench.request(example, number)
        prompt = request.prompt_token_ids
        for length in range(1, len(prompt) + 1):
            yield replace(request, prompt_token_ids=prompt[:length])
        for special in sorted(bench.vocabulary.special_tokens)[:3]:
            yield replace(request, prompt_token_ids=(*prompt, special))
            yield replace(request, prompt_token_ids=(special,))


def _can_write(tokens: Sequence[bytes], prefix: bytes) -> bool:
    """Return whether tokens write `prefix`, of which the last may go on."""
    reachable = {0}
    for begin in range(len(prefix)):
        if begin in reachable:
            rest = prefix[begin:]
            reachable |= {begin + len(token) for token in tokens if token and rest.startswith(token)}
            if any(token.startswith(rest) for token in tokens):
                return True
    return len(prefix) in reachable
