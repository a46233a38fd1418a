"""Errors are sent to other processes with all their fields."""

from __future__ import annotations

import asyncio
import errno
import inspect
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import guideway_engine.engine
import guideway_engine.scheduling.kv_cache
import guideway_engine.server.errors
import pytest
from guideway.api import Fault, GuidewayError, LimitExceeded, PluginError, PluginLoadError
from guideway.errors import (
    CALLS,
    MAX_TEXT,
    RemoteError,
    blame,
    contain,
    passable,
    printable,
    record_progress,
    text_of,
    without_frames,
)
from guideway_hosts.messages import describe_error, read_error

# these define their own errors
assert guideway_engine.engine and guideway_engine.scheduling.kv_cache and guideway_engine.server.errors


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


def test_a_kept_error_holds_no_variables_also_where_its_causes_are_a_circle() -> None:
    """As when a host is lost: several waiters share an error, and one raises it while handling its consequence."""

    def fails(held: object) -> None:
        raise lost

    lost = OSError("the host is gone")
    try:
        try:
            fails(object())
        except OSError as error:
            raise PluginError("no host", plugin="grammar.any") from error
    except PluginError as error:
        named = error
        try:
            raise lost
        except OSError:
            pass
    assert named.__cause__ is lost and lost.__context__ is named
    assert without_frames(named) is named
    traces = [lost.__traceback__]
    while traces[-1] is not None:
        traces.append(traces[-1].tb_next)
    held = [trace.tb_frame.f_locals.get("held") for trace in traces if trace is not None]
    assert named.__traceback__ is None and len(held) > 1 and not any(held)


def test_an_error_that_cannot_be_printed_is_named() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    remote = RemoteError.of(Mute())
    assert str(remote).endswith("Mute: its message cannot be printed")


class Unspeakable(Exception):
    """An error whose message cannot be formatted."""

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


def passes(plugin: Callable[[], Any]) -> bool:
    """Return whether an exception of `plugin` counts as an interrupt, not as its own failure."""
    try:
        plugin()
    except BaseException as error:
        try:
            contain(error)
        except BaseException as passed:
            assert passed is error
            return True
    return False


def raiser(error: type[BaseException]) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def interrupted() -> None:
    """Raise SIGINT, like Ctrl-C in a plugin."""
    signal.raise_signal(signal.SIGINT)


def terminated() -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def handlers() -> Iterator[Callable[[int, Any], None]]:
    """Yield a function that sets a signal's handler until the test ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield lambda number, handler: signal.signal(number, handler) and None
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_interrupt_passes_in_the_main_thread_only() -> None:
    assert threading.current_thread() is threading.main_thread()
    assert passes(interrupted)
    assert passes(raiser(KeyboardInterrupt)), "it cannot be told from Ctrl-C"
    for error in (GeneratorExit, SystemExit, asyncio.CancelledError):
        assert not passes(raiser(error))
    with ThreadPoolExecutor(1) as pool:
        for error in (KeyboardInterrupt, GeneratorExit, SystemExit):
            assert not pool.submit(passes, raiser(error)).result()


def test_one_raise_statement_interrupts_once_until_there_is_progress() -> None:
    same = KeyboardInterrupt()

    def act() -> None:
        raise same

    for plugin in (raiser(KeyboardInterrupt), act):
        assert passes(interrupted) and passes(interrupted), "Ctrl-C passes however often it comes"
        assert passes(partial(passes_on, plugin)), "hosts further out let it pass as well"
        assert not passes(plugin) and not passes(plugin)
        assert passes(interrupted)
        assert passes(plugin) and not passes(plugin)
        record_progress()
        assert passes(plugin)


def passes_on(act: Callable[[], None]) -> None:
    try:
        act()
    except BaseException as error:
        contain(error)


def test_where_ctrl_c_is_ignored_there_is_none(handlers: Callable[[int, Any], None]) -> None:
    handlers(signal.SIGINT, signal.SIG_IGN)
    assert not passes(interrupted)
    assert not passes(raiser(KeyboardInterrupt))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_the_programs_own_handlers_raise_passes(
    error: type[BaseException], handlers: Callable[[int, Any], None]
) -> None:
    def stop() -> None:
        raise error

    def handler(number: int, frame: Any) -> None:
        stop()

    handlers(signal.SIGINT, handler)
    assert passes(interrupted)
    assert not passes(stop), "a plugin may call the same function"
    assert not passes(raiser(error))
    handlers(signal.SIGTERM, handler)
    assert passes(terminated)
    handlers(signal.SIGTERM, signal.default_int_handler)
    assert passes(terminated)
    assert passes(raiser(error)) == (error is KeyboardInterrupt)


def test_under_an_event_loop_only_its_own_interrupt_passes() -> None:
    async def main() -> None:
        assert not passes(raiser(KeyboardInterrupt))
        assert not passes(interrupted), "it raises nothing: the loop cancels this coroutine when it waits"
        assert passes(interrupted)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
        assert not passes(interrupted)
        assert not passes(raiser(KeyboardInterrupt))

    with asyncio.Runner() as runner, pytest.raises(KeyboardInterrupt):
        runner.run(main())


class Unprintable(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_an_error_whose_message_interrupts_is_one_that_cannot_be_printed() -> None:
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(text_of, Unprintable()).result()
    assert said == "Unprintable: its message cannot be printed"
    with pytest.raises(KeyboardInterrupt):
        text_of(Unprintable())


def test_a_call_within_a_call_is_that_which_is_told() -> None:
    me = threading.get_ident()
    with blame("grammar.outer", "compile"):
        with blame("grammar.inner", "supports"):
            assert CALLS[me].plugin == "grammar.inner"
        assert CALLS[me].plugin == "grammar.outer"
    assert me not in CALLS


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\x00b\x07c\x7f", "a\\x00b\\x07c\\x7f"),
        ("\x9b2J", "\\x9b2J"),
        ("a\rb", "a\\rb"),
        ("\u202egnp\u2066x\u061c", "\\u202egnp\\u2066x\\u061c"),
        ("line\n\tline", "line\n\tline"),
        ("Zoë 漢字 \U0001f689 \\x1b", "Zoë 漢字 \U0001f689 \\x1b"),
    ],
)
def test_what_commands_a_terminal_is_escaped(given: str, shown: str) -> None:
    assert printable(given) == passable(given) == shown
    assert text_of(ValueError(given)) == f"ValueError: {shown}"


def caused(error: BaseException) -> RuntimeError:
    outer = RuntimeError("could not compile")
    outer.__cause__ = error
    return outer


OUT_OF_MEMORY = [
    MemoryError(),
    caused(MemoryError()),
    caused(RuntimeError("std::bad_alloc")),
    RuntimeError("std::bad_alloc"),
    RuntimeError("memory allocation of 8589934592 bytes failed"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]


@pytest.mark.parametrize("error", [*OUT_OF_MEMORY, *map(RemoteError.of, OUT_OF_MEMORY)], ids=repr)
def test_memory_that_runs_out_over_a_request_is_a_limit(error: BaseException) -> None:
    for each in (error, read_error(describe_error(error))):
        for plugin, field in (("grammar.a", "constraint"), ("some-package/modifier.b", "modifiers.b")):
            said = rf"{plugin} failed in compile: .*raise limits.memory_bytes"
            with pytest.raises(LimitExceeded, match=said) as ended, blame(plugin, "compile"):
                raise each
            assert ended.value.field == field
            assert ended.value.__cause__ is each
            assert isinstance(Fault.of(plugin, "fill", each).error(), LimitExceeded)


@pytest.mark.parametrize("error", [*OUT_OF_MEMORY, RuntimeError("much memory"), ValueError("allocation")], ids=repr)
def test_else_it_is_the_plugins_error(error: BaseException) -> None:
    plugin = "device.c" if error in OUT_OF_MEMORY else "grammar.a"
    with pytest.raises(PluginError), blame(plugin, "apply"):
        raise error
    assert isinstance(Fault.of(plugin, "apply", error).error(), PluginError)
    with pytest.raises(PluginLoadError), blame("grammar.a", "while it was built", error=PluginLoadError):
        raise error
