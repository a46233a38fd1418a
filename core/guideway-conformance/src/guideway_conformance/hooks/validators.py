"""Checks of what may happen when a request comes in."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from guideway.api import (
    Completion,
    FinishReason,
    GenerationResult,
    InvalidRequest,
    LimitExceeded,
    Request,
)

from guideway_conformance.apart import apart
from guideway_conformance.clock import HOURS, clock_moved
from guideway_conformance.hooks.subject import (
    Asked,
    HooksSubject,
    as_bytes,
    environment,
    refused_words,
    requests,
    results,
    twins,
    variables,
)
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.threads import interleaved

__all__: list[str] = []

NUM_THREADS = 8
ROUNDS = 20
MEANWHILE = 150
MANY = 200
"""The requests of one tenant that run at once, and that one is asked of."""
PAUSES = 2000
"""The pauses of threads in the midst of a plugin's code, while it hears and is asked at once."""
COUNTED = "LimitExceeded"
"""The kind of refusal that may depend on what came before."""
WHOLE = "request"
"""The field of a refusal that names no part."""
BROKEN = (b'{"\xfc": 5, "\xff', b'{"a": ', b'{"no such": {}}')
"""The contents of files that hardly any plugin makes sense of."""
CONTENTS = ("{}", "", "[]", "a line\n")
"""The contents of files that some plugins can read."""


@check("hooks", tier="smoke")
def implements_a_hook(subject: HooksSubject) -> None:
    """A plugin of kind hooks implements at least one of guideway's hooks."""
    expect(subject.traits(subject.component), "it implements none: its functions need @guideway.api.hookimpl")


@check("hooks", tier="smoke")
def implements_guideways_hooks(subject: HooksSubject) -> None:
    """Each hook it implements is one that guideway has."""
    expect(not subject.unknown, f"guideway has no hook {', '.join(subject.unknown)}: it is never called")


@check("hooks", trait="validates")
def passes_or_refuses(subject: HooksSubject) -> None:
    """A validator returns for what may pass and raises InvalidRequest for anything else."""
    for asked in subject.validated(extreme=True):
        _pass_or_refuse(subject, asked)


@check("hooks", trait="validates", seconds=60)
def a_validator_serves_several_threads(subject: HooksSubject) -> None:
    """A validator may be called from several threads at once, while observers hear of other requests, and decides as it
    does alone."""
    every = list(subject.validated())
    expected = [_pass_or_refuse(subject, asked) for asked in every]
    found: list[tuple[int, bool]] = []

    def ask(places: list[int]) -> None:
        found.extend((place, _pass_or_refuse(subject, every[place])) for place in places)

    places = [*range(len(every))] * ROUNDS
    random.Random(0).shuffle(places)
    with interleaved(subject.plugin_class), ThreadPoolExecutor(NUM_THREADS) as threads:
        for done in [threads.submit(ask, places[i::NUM_THREADS]) for i in range(NUM_THREADS)]:
            done.result()
    after = [_pass_or_refuse(subject, asked) for asked in every]
    for place, passed in found:  # one that was asked too often, as it may count, is refused from then on
        if expected[place] == after[place]:
            expect(
                passed == after[place],
                f"{every[place]} {'passed' if passed else 'was refused'} beside other threads, and alone it "
                f"{'passes' if after[place] else 'is refused'}",
            )
    _hear_meanwhile(subject, every)


def _hear_meanwhile(subject: HooksSubject, every: list[Asked]) -> None:
    """Validate while one thread, as that which decodes, tells the same object of starts and ends."""
    hears = subject.traits(subject.component)
    if "observes" not in hears:
        return
    one = next(request for request in requests() if request.params.max_tokens == 1)

    def tell(name: str) -> None:
        request = replace(one, request_id=name)
        if "request_started" in hears:
            subject.call("request_started", request=request)

    def end(name: str) -> None:
        if "request_finished" in hears:
            request = replace(one, request_id=name)
            subject.call("request_finished", request=request, result=results(request)[0])

    def ask(first: int) -> None:
        for i in range(first, first + MEANWHILE // 3):
            _pass_or_refuse(subject, every[i % len(every)])

    def turn() -> None:
        for i in range(MEANWHILE):
            tell(f"a-{i}")
            end(f"a-{i}")

    def go_on() -> None:
        while not asked.is_set():
            turn()

    for i in range(MEANWHILE):
        tell(f"held-{i}")
    asked = threading.Event()
    with interleaved(subject.plugin_class, PAUSES), ThreadPoolExecutor(NUM_THREADS) as threads:
        telling = threads.submit(go_on)
        try:
            for done in [threads.submit(ask, 3 * i) for i in range(NUM_THREADS - 1)]:
                done.result()
        finally:
            asked.set()
        telling.result()
    for i in range(MEANWHILE):
        end(f"held-{i}")


@check("hooks", trait="validates", seconds=60)
def a_validator_decides_each_by_itself(subject: HooksSubject) -> None:
    """A validator decides of each request as if it were the first that it is asked of, whatever it was asked of before
    and whichever others run; what it counts may refuse one with LimitExceeded, and lets none pass."""
    every = [*subject.modest(), *twins(subject, apart(lambda: refused_words(subject)))]
    alone = [apart(partial(_decisions, subject, every, (i,)))[0] for i in range(len(every))]
    forward = tuple(range(len(every)))
    first = alone.index("") if "" in alone else 0
    for places, told in (
        *((forward * 2, ""), (forward[::-1], ""), ((first,) * MANY, "")),
        *((forward, "run"), (forward, "have ended")),
    ):
        found = apart(partial(_decisions, subject, every, places, told=told))
        for place, decision in zip(places, found, strict=True):
            when = f"beside others that {told}" if told else "after others"
            verdict = f"is refused with {decision}, and no {COUNTED}" if decision else "passes"
            expect(
                decision in (alone[place], COUNTED) or (decision and alone[place]),
                f"{when} {every[place]} {verdict}, and asked of it first it "
                f"{'refuses it' if alone[place] else 'lets it pass'}",
            )


def _decisions(subject: HooksSubject, every: list[Asked], places: tuple[int, ...], *, told: str = "") -> list[str]:
    """The kinds of refusal that an object which is new gives of calls, one after the other; of one that passes none.
    `told`: it hears that many requests run, or have ended."""
    again = HooksSubject(subject.component, subject.settings)
    if told:
        _hear_of_many(again, ended=told != "run")
    found = []
    for place in places:
        try:
            again.call(every[place].hook, **every[place].arguments)
        except LimitExceeded:
            found.append(COUNTED)
        except Exception as error:  # of what kind, `passes_or_refuses` asks
            found.append(type(error).__name__)
        else:
            found.append("")
    return found


def _hear_of_many(subject: HooksSubject, *, ended: bool) -> None:
    """Tell it of requests of every make, and of more of one tenant than he might have."""
    hears = subject.traits(subject.component)
    one = next(request for request in requests() if request.params.max_tokens == 1)
    for request in (*requests(), *(replace(one, request_id=f"of many {i}") for i in range(MANY))):
        if "request_started" in hears:
            subject.call("request_started", request=request)
        if ended and "request_finished" in hears:
            subject.call("request_finished", request=request, result=_long_result(request))


def _long_result(request: Request) -> GenerationResult:
    outputs = (Completion(text="a" * MANY, token_ids=(5,) * MANY, finish_reason=FinishReason.STOP),)
    return GenerationResult(request_id=request.request_id, prompt_token_ids=request.prompt_token_ids, outputs=outputs)


@check("hooks", trait="validates")
def a_validator_returns_nothing(subject: HooksSubject) -> None:
    """A validator returns None, for what it returns is not used."""
    for asked in subject.validated(extreme=True):
        try:
            returned = subject.call(asked.hook, **asked.arguments)
        except Exception:  # of what kind, `passes_or_refuses` asks
            continue
        expect(not returned, f"it returned {returned[:1]!r}; a request cannot be replaced, only refused")


@check("hooks", trait="validates")
def a_refusal_names_a_field(subject: HooksSubject) -> None:
    """An InvalidRequest names the part of the request to change, which is not all of it unless every request is
    refused, and says something."""
    passed: set[str] = set()
    unnamed: list[Asked] = []
    for asked in subject.validated(extreme=True):
        try:
            subject.call(asked.hook, **asked.arguments)
        except InvalidRequest as refusal:
            expect(isinstance(refusal.field, str) and refusal.field, f"its refusal has the field {refusal.field!r}")
            expect(str(refusal).strip(), "its refusal has no message")
            if refusal.field == WHOLE:
                unnamed.append(asked)
        except Exception:  # which `passes_or_refuses` finds
            continue
        else:
            passed.add(asked.hook)
    for asked in unnamed:
        expect(asked.hook not in passed, f"others pass, and of {asked} its refusal says {WHOLE!r} is to be changed")


@check("hooks", trait="validates")
def a_validator_changes_nothing(subject: HooksSubject) -> None:
    """A validator leaves the submission or request and its context as they are, whether it passes or refuses."""
    for asked in subject.validated(extreme=True):
        before = as_bytes(asked.arguments)
        with contextlib.suppress(Exception):  # of what kind, `passes_or_refuses` asks
            subject.call(asked.hook, **asked.arguments)
        expect(as_bytes(asked.arguments) == before, f"it changed {asked}")
        expect(not asked.written, f"it wrote to parts of {asked}, and took that back: {', '.join(asked.written[:3])}")


@check("hooks", trait="validates")
def what_cannot_be_read_refuses(subject: HooksSubject) -> None:
    """A validator that cannot read the file that its environment variable names fails closed: it refuses every request
    with InvalidRequest, also where it could read that file hours before, when it was asked of another request, and it
    is gone since, or a folder, cannot be opened any more, or holds what it cannot make sense of."""
    names: list[str] = apart(lambda: variables(subject))
    sys.addaudithook(_heed)  # for good: each check is in a process of its own
    with tempfile.TemporaryDirectory() as folder:
        missing, latin, other = (Path(folder, name) for name in ("missing", "latin", "other"))
        latin.write_bytes(b'{"\xfc": 5, "\xff')
        other.write_text('["\u00fc", 5]', encoding="utf-8")
        for i, (name, content) in enumerate(product(names, CONTENTS)):
            path = Path(folder, f"there {i}")
            nonsense = [each for each in BROKEN if apart(partial(_refuses_all, subject, name, path, each))]
            kept = apart(partial(_kept, subject, name, path, content, nonsense))
            expect(not kept, f"the file that {name} names, and that it had read, {kept} passed")
        for name in names:
            for path in (missing, latin, other):
                with _opening() as opened, environment(name, str(path)):
                    again = HooksSubject(subject.component, subject.settings)
                    passed = [asked for asked in again.validated() if _pass_or_refuse(again, asked)]
                expect(
                    path != missing or str(path) not in opened or not passed,
                    f"{name} names a file that is not there, and {', '.join(map(str, passed[:1]))} passed",
                )


def _refuses_all(subject: HooksSubject, name: str, path: Path, content: bytes) -> bool:
    """Return whether nothing passes where the file at `path` has this content."""
    path.write_bytes(content)
    with environment(name, str(path)):
        again = HooksSubject(subject.component, subject.settings)
        return not any(_pass_or_refuse(again, asked) for asked in again.validated())


def _kept(subject: HooksSubject, name: str, path: Path, content: str, nonsense: list[bytes]) -> str:
    """Return what passes still, where the file at `path` was read when requests came, and cannot be any more, and why.
    `nonsense`: what the plugin makes no sense of."""

    def shut() -> None:
        _SHUT.add(str(path))

    def make_a_folder() -> None:
        path.unlink()
        path.mkdir()

    ways: dict[str, Callable[[], object]] = {"cannot be opened, and": shut, "is gone, and": path.unlink}
    for i, each in enumerate(nonsense):
        ways[f"holds nonsense{' ' * i}, and"] = partial(path.write_bytes, each)
    ways["is a folder, and"] = make_a_folder
    for why, spoil in ways.items():
        path.write_text(content, encoding="utf-8")
        with environment(name, str(path)):
            again = HooksSubject(subject.component, subject.settings)
            with _opening() as opened:
                passed = [asked for asked in again.validated() if _pass_or_refuse(again, asked)]
            if str(path) not in opened:  # it has it in another way
                return ""
            spoil()
            try:
                with clock_moved(subject.plugin_class, HOURS):
                    still = [str(asked) for asked in passed if _pass_or_refuse(again, asked)]
            finally:
                _SHUT.discard(str(path))
            if still:
                return f"{why} {still[0]}"
    return ""


@contextlib.contextmanager
def _opening() -> Iterator[list[str]]:
    """The files that are opened within."""
    opened: list[str] = []
    _OPENED.append(opened)
    try:
        yield opened
    finally:
        _OPENED.remove(opened)


_OPENED: list[list[str]] = []
_SHUT: set[str] = set()
"""The files that cannot be opened, though they are there."""


def _heed(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        for opened in _OPENED:
            opened.append(str(arguments[0]))
        if str(arguments[0]) in _SHUT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(arguments[0]))


def _pass_or_refuse(subject: HooksSubject, asked: Asked) -> bool:
    """Return whether it passed."""
    try:
        subject.call(asked.hook, **asked.arguments)
    except InvalidRequest:
        return False
    except Exception as error:
        raise AssertionError(f"for {asked} it raised {type(error).__name__}, which is no InvalidRequest") from error
    return True
