"""Errors reach another process with everything they say."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator

import guideway_engine.engine
import guideway_engine.scheduling.kv_cache
import pytest
from guideway.api import Fault, GuidewayError, PluginError
from guideway.errors import MAX_TEXT, RemoteError, text_of

assert guideway_engine.engine and guideway_engine.scheduling.kv_cache  # they define errors of their own


def tree(base: type[GuidewayError] = GuidewayError) -> Iterator[type[GuidewayError]]:
    yield base
    for child in base.__subclasses__():
        if child.__module__.startswith("guideway"):
            yield from tree(child)


def made(cls: type[GuidewayError]) -> GuidewayError:
    fields = {
        name: f"the {name}"
        for name in (inspect.getfullargspec(cls.__init__).kwonlyargs if inspect.isfunction(cls.__init__) else ())
    }
    error: GuidewayError = cls("what happened", **fields)
    return error


def travelled(error: BaseException) -> BaseException:
    arrived: BaseException = pickle.loads(pickle.dumps(error))
    return arrived


def test_the_tree_is_found() -> None:
    names = {cls.__name__ for cls in tree()}
    assert {"PluginConflict", "UnsupportedGrammar", "WorkerLost", "KVCacheFull", "EngineClosed"} <= names


@pytest.mark.parametrize("cls", list(dict.fromkeys(tree())), ids=str)
def test_every_error_pickles_with_fields_and_notes(cls: type[GuidewayError]) -> None:
    error = made(cls)
    error.add_note("and a hint")
    arrived = travelled(error)
    assert type(arrived) is cls
    assert str(arrived) == "what happened"
    assert vars(arrived) == vars(error)
    assert arrived.__notes__ == ["and a hint"]
    assert arrived.__cause__ is None
    assert vars(travelled(arrived)) == vars(error), "also a second time"


def test_causes_arrive_as_text() -> None:
    error = PluginError("it failed", plugin="worker.x")
    error.__cause__ = LookupError("nothing there")
    error.__cause__.add_note("look elsewhere")
    error.__cause__.__cause__ = made(PluginError)
    arrived = travelled(travelled(error))
    cause = arrived.__cause__
    assert isinstance(cause, RemoteError)
    assert (str(cause), cause.type_name) == ("LookupError: nothing there", "LookupError")
    assert cause.__notes__ == ["look elsewhere"]
    assert str(cause.__cause__) == "PluginError: what happened"


def test_causes_in_a_circle_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    remote = RemoteError.of(first)
    assert str(remote.__cause__) == "ValueError: second"
    assert remote.__cause__ is not None
    assert remote.__cause__.__cause__ is None


def test_an_error_that_cannot_be_printed_is_named() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    remote = RemoteError.of(Mute())
    assert str(remote).endswith("Mute: its message cannot be printed")


class Unspeakable(Exception):
    """Whose message cannot be made."""

    def __str__(self) -> str:
        raise ValueError("not even this")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("too small"), "ValueError: too small"),
        (Unspeakable(), "Unspeakable: its message cannot be printed"),
        (ValueError("\ud800"), r"ValueError: \ud800"),
    ],
)
def test_whatever_is_raised_can_be_told(error: Exception, said: str) -> None:
    assert text_of(error) == said
    assert Fault.of("grammar.x", "accept", error).message == said
    text_of(error).encode()


def test_a_message_without_end_is_cut() -> None:
    assert len(text_of(ValueError("x" * 1_000_000))) == MAX_TEXT
