"""The exception tree. Every error guideway raises on purpose is one of these.

A plugin maps its library's exceptions onto this tree once, at its own edge, with ``raise ... from``.
A refused token is a return value, never an exception.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from signal import default_int_handler, getsignal, valid_signals
from threading import current_thread, get_ident, main_thread
from time import monotonic
from traceback import clear_frames
from types import CodeType, TracebackType
from typing import Any, TypeVar

__all__ = [
    "ConformanceError",
    "DeadEnd",
    "GuidewayError",
    "InvalidAnswer",
    "InvalidConfiguration",
    "InvalidGrammar",
    "InvalidRequest",
    "LimitExceeded",
    "NotCertified",
    "PluginConflict",
    "PluginError",
    "PluginExited",
    "PluginLoadError",
    "PluginNotFound",
    "PluginUnavailable",
    "RemoteError",
    "SequencesFailed",
    "Unhealthy",
    "UnsupportedCapability",
    "UnsupportedGrammar",
    "WorkerLost",
    "blame",
    "close_each",
    "contain",
    "did_you_mean",
    "excerpt",
    "failure_of",
    "passable",
    "printable",
    "quoted",
    "record_progress",
    "text_of",
    "without_frames",
]

log = logging.getLogger(__name__)

E = TypeVar("E", bound=BaseException)

OUT_OF_MEMORY = re.compile(
    r"\bMemoryError\b|\bbad_alloc\b|\bbad allocation\b|\bout of memory\b|\bcannot allocate memory\b"
    r"|\bmemory allocation of \d+ bytes\b|\bmemory_bytes\b",
    re.IGNORECASE,
)
"""The words for memory that ran out: Python's, C++'s, Rust's, the system's and ours."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

MAX_EXCERPT = 60
"""Characters of a line that are shown beside a place in it."""

MAX_TEXT = 2000
"""Characters of a stranger's message that are passed on."""


class GuidewayError(Exception):
    """Base of every error guideway raises on purpose. It pickles with all its fields; its cause arrives as a
    `RemoteError`."""

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException's own way calls the class with `args` alone, which keyword-only fields refuse
        cause = self.__cause__ and RemoteError.of(self.__cause__)
        return _restored, (type(self), self.args, dict(vars(self)), cause)


class RemoteError(GuidewayError):
    """The message of an exception of another process, where the exception itself cannot come along. `type_name` is the
    name of its type."""

    def __init__(self, message: str, *, type_name: str) -> None:
        super().__init__(message)
        self.type_name = type_name

    @staticmethod
    def of(error: BaseException) -> RemoteError:
        """All that can be said of `error` and its causes in plain text."""
        chain = [error]
        while (cause := chain[-1].__cause__) is not None and cause not in chain:
            chain.append(cause)
        remote: RemoteError | None = None
        for link in reversed(chain):
            remote = _in_words(link, remote)
        assert remote is not None
        return remote


class PluginError(GuidewayError):
    """Something is wrong with one plugin.

    `plugin` is its canonical id, ``distribution/kind.name``, or ``kind.name`` where no distribution is known. `phase`
    says when, as in ``in compile``; empty where the message alone says that.
    """

    def __init__(self, message: str, *, plugin: str, phase: str = "") -> None:
        super().__init__(message)
        self.plugin = plugin
        self.phase = phase


class PluginNotFound(PluginError, LookupError):
    """No installed distribution offers the component."""


class PluginConflict(PluginError):
    """Two distributions, or two components composed into one object, claim the same name."""


class PluginUnavailable(PluginError):
    """The component is installed but cannot or may not run here; the message says why."""


class NotCertified(PluginUnavailable):
    """Selected components have no verdict that stands, and ``[plugins] require`` is ``certified``; the message names
    them all, and `plugin` the first."""


class PluginLoadError(PluginError):
    """A selected component failed while it was imported, looked up or checked against its contract."""


class PluginExited(PluginLoadError):
    """A selected component ends the process that imports it. `status` is the exit status, less than 0 for a signal."""

    def __init__(self, message: str, *, plugin: str, status: int) -> None:
        super().__init__(message, plugin=plugin)
        self.status = status


class SequencesFailed(GuidewayError):
    """Some sequences of a step cannot go on. `sequence_ids` are theirs, of `WorkerStep.sequence_ids`: a worker mixin
    raises this from `before_step` or `after_step` to end those alone."""

    def __init__(self, message: str, *, sequence_ids: Iterable[str]) -> None:
        super().__init__(message)
        self.sequence_ids = tuple(sequence_ids)


class Unhealthy(GuidewayError):
    """The host refuses requests that nothing is wrong with."""


class WorkerLost(GuidewayError):
    """A worker is gone or does not answer; what it was doing is lost, what the scheduler knows is not."""


class InvalidConfiguration(GuidewayError, ValueError):
    """An engine, host or plugin option is wrong. `field` names the option."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class InvalidRequest(GuidewayError, ValueError):
    """A request that cannot be served as it stands. `field` names the part the caller has to change."""

    def __init__(self, message: str, *, field: str = "request") -> None:
        super().__init__(message)
        self.field = field


class InvalidAnswer(GuidewayError, ValueError):
    """An answer that is no instance of the type, or no value of the JSON, it was asked for as; or, from
    `guideway.extract`, one that is not whole."""


class InvalidGrammar(InvalidRequest):
    """The constraint is malformed or describes no output at all: no strategy could serve it."""

    def __init__(self, message: str, *, field: str = "constraint") -> None:
        super().__init__(message, field=field)


class UnsupportedGrammar(InvalidRequest):
    """The constraint is well formed, but this strategy cannot serve it. `feature` names what it lacks."""

    def __init__(self, message: str, *, feature: str, field: str = "constraint") -> None:
        super().__init__(message, field=field)
        self.feature = feature


class UnsupportedCapability(InvalidRequest):
    """A plugin or host was asked for something it does not offer."""


class LimitExceeded(InvalidRequest):
    """The request is larger, deeper or slower than the configured limits allow, or memory ran out over it."""


def failure_of(plugin: str, message: str, *, phase: str = "") -> GuidewayError:
    """Return the error of a request over which a plugin failed. `message` says how, with the type of the cause: where
    that is memory that ran out, whatever library found it so, it is a `LimitExceeded`; else a `PluginError`. A device's
    memory, or a worker's, is no limit of a request."""
    kind, _, name = plugin.rpartition("/")[2].partition(".")
    field = {"grammar": "constraint", "modifier": f"modifiers.{name}"}.get(kind)
    if field is None or OUT_OF_MEMORY.search(message) is None:
        return PluginError(message, plugin=plugin, phase=phase)
    return LimitExceeded(f"{message}; it ran out of memory: ask for less, or raise limits.memory_bytes", field=field)


class DeadEnd(GuidewayError):
    """A live matcher state in which no token is legal. Ends that request only."""


class ConformanceError(GuidewayError):
    """A plugin broke its contract at run time. The message names the sentence it broke."""


def contain(error: BaseException) -> None:
    """Return for everything that can be one plugin's failure, re-raise a wish to stop.

    A host catches BaseException around a plugin, because a Rust panic (pyo3's ``PanicException``) and ``SystemExit``
    are no `Exception`, and calls this first. A wish to stop is what a signal's handler raises, amid whatever the main
    thread does: Ctrl-C's KeyboardInterrupt, or the SystemExit of a handler that ends the program. In any other thread,
    and where the handlers raise nothing, as in workers' processes and under an event loop, they are the plugin's.

    Python's own handler of Ctrl-C leaves no trace, so a KeyboardInterrupt of a plugin passes as well, but once: where
    the host does again what was interrupted, and the same ``raise`` statement interrupts that, it is the plugin's.
    """
    if not isinstance(error, KeyboardInterrupt | SystemExit) or current_thread() is not main_thread():
        return
    handlers = [getsignal(number) for number in valid_signals()]
    origin = None
    if not any(_raised(handler, error) for handler in handlers):
        if default_int_handler not in handlers or not isinstance(error, KeyboardInterrupt):
            return
        origin, depth = _raise_statement(error), _depth()
        is_passing = depth < getattr(error, PASSED, 0)  # hosts further out are asked as well
        setattr(error, PASSED, depth)
        if origin is not None and origin == INTERRUPTED.origin and not is_passing:
            return
    INTERRUPTED.origin = origin
    raise error


def record_progress() -> None:
    """Note that what was interrupted has been done: a host calls this at the end of a step."""
    INTERRUPTED.origin = None


@dataclass(slots=True)
class _Interrupted:
    """The last wish to stop that passed."""

    origin: tuple[CodeType, int] | None = None
    """The ``raise`` statement that it came from; None: it came from a signal, or from no such statement."""


INTERRUPTED = _Interrupted()

PASSED = "_guideway_passed"
"""The attribute of an interrupt that has passed: how deep in the stack that was."""


CALLS: dict[int, blame] = {}
"""By thread: the call into a plugin that it is in, for whoever asks what takes so long."""


@dataclass(slots=True)
class blame:  # noqa: N801 - used as a function is
    """``with blame(plugin, phase):`` around a call into a plugin: whatever the call raises becomes an error that names
    the plugin and says in which phase it failed.

    `phase` is the name of the method that is called, or words such as ``while it was built``. `error` is the class of
    what is raised, or `LimitExceeded` for memory that ran out over a request (`failure_of`); errors of the types in
    `passing`, which a plugin may raise there, pass as they are, and so does a wish to stop (`contain`).
    """

    plugin: str
    phase: str
    error: type[PluginError] = field(default=PluginError, kw_only=True)
    passing: tuple[type[BaseException], ...] = field(default=(), kw_only=True)
    keeps_deadlines: bool = field(default=False, kw_only=True)
    """True if the call ends by itself when it takes too long."""
    began: float = field(default=0.0, init=False)
    """Start of the call, by the clock of `time.monotonic`."""
    _outer: blame | None = field(default=None, init=False)

    def __enter__(self) -> None:
        self.began = monotonic()
        thread = get_ident()
        self._outer = CALLS.get(thread)
        CALLS[thread] = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outer is None:
            CALLS.pop(get_ident(), None)
        else:
            CALLS[get_ident()] = self._outer
        if error is None or isinstance(error, self.passing):
            return
        contain(error)
        when = self.when
        message = f"{self.plugin} failed {when}: {text_of(error)}"
        if self.error is PluginError:
            raise failure_of(self.plugin, message, phase=when) from error
        raise self.error(message, plugin=self.plugin, phase=when) from error

    @property
    def when(self) -> str:
        """The phase after a verb."""
        return self.phase if " " in self.phase else f"in {self.phase}"


def close_each(parts: Iterable[tuple[str, Callable[[], object]]]) -> None:
    """Close parts, first to last, each given as ``kind.name`` of its plugin and the method to call. What one raises is
    logged and keeps no other from closing; a wish to stop waits for the last."""
    with ExitStack() as last_first:
        for plugin, close in reversed(list(parts)):
            last_first.callback(_close, plugin, close)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """``did you mean 'this'?``, with the known word that is closest to `word`; empty if none is close."""
    import difflib  # for the rare word that is wrong

    close = difflib.get_close_matches(str(word)[:80], list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def excerpt(text: str, at: int) -> str:
    """The line of `text` that has the character at index `at`, and below it a caret under that character, each on an
    indented line of its own. A long line is cut around the place."""
    begin = text.rfind("\n", 0, at) + 1
    line, at = text[begin:].partition("\n")[0].rstrip("\r"), at - begin
    first = max(0, at - 40) if len(line) > MAX_EXCERPT else 0
    shown = line[first : first + MAX_EXCERPT]
    before = "..." if first else ""
    after = "..." if first + MAX_EXCERPT < len(line) else ""
    pad = re.sub(r"[^\t]", " ", before + shown[: at - first])
    return f"\n    {before}{shown}{after}\n    {pad}^"


def _close(plugin: str, close: Callable[[], object]) -> None:
    try:
        close()
    except BaseException as error:
        contain(error)
        log.exception("%s failed in close", plugin)


def _raised(handler: Any, error: BaseException) -> bool:
    """Return whether `error` came through a signal's handler."""
    while isinstance(handler, partial):
        handler = handler.func
    code, trace = getattr(handler, "__code__", None), error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    return trace is not None


def _depth() -> int:
    """The number of frames on the stack."""
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count


def _raise_statement(error: BaseException) -> tuple[CodeType, int] | None:
    """The ``raise`` statement that `error` came from, by its code and place there. No signal arrives in one."""
    import dis  # for the rare interrupt

    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_lasti < 0:
        return None
    code = trace.tb_frame.f_code
    return (code, trace.tb_lasti) if dis.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS" else None


def quoted(names: Iterable[str]) -> str:
    """Names of keywords in a message: `not` is one, too."""
    return ", ".join(f"`{name}`" for name in names)


def printable(text: str) -> str:
    """`text` with control characters escaped, so that what a request holds commands no terminal: all of Unicode's
    but for the end of a line and the tab, and what turns the direction of writing."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def passable(text: str) -> str:
    """`text` as every encoder takes it, `printable`, and no more than `MAX_TEXT` characters of it."""
    return printable(text.encode("utf-8", "backslashreplace").decode()[:MAX_TEXT])


def text_of(error: BaseException) -> str:
    """``Type: message``, `passable`, whatever a stranger's class makes of its message."""
    if isinstance(error, RemoteError):  # it says both of the error it stands for
        return passable(str(error))
    return passable(_with_memory(f"{type(error).__name__}: {_message(error)}", error))


def without_frames(error: E) -> E:
    """An error that is kept, as in a result: its causes keep their lines, but nothing keeps the variables of what it
    came through, which may be a whole request and refer to the error in turn."""
    seen: list[BaseException] = [error]  # one that several wait for may be raised again amid what it caused: a circle
    while (cause := seen[-1].__cause__ or seen[-1].__context__) is not None and not any(cause is one for one in seen):
        clear_frames(cause.__traceback__)
        seen.append(cause)
    return error.with_traceback(None)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as unprintable:  # of a stranger's class
        contain(unprintable)
        return "its message cannot be printed"


def _with_memory(text: str, error: BaseException) -> str:
    """Add the type of a cause of `error` to its text where that alone says that memory ran out."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        if OUT_OF_MEMORY.search(f"{type(cause).__name__}: {_message(cause)}"):
            return text if OUT_OF_MEMORY.search(text) else f"{text} (MemoryError)"
        chain.append(cause)
    return text


def _in_words(error: BaseException, cause: RemoteError | None) -> RemoteError:
    if isinstance(error, RemoteError):
        return error
    name, text = type(error).__qualname__, _message(error)
    remote = RemoteError(_with_memory(f"{name}: {text}" if text else name, error), type_name=name)
    for note in getattr(error, "__notes__", ()):
        remote.add_note(str(note))
    remote.__cause__ = cause
    return remote


def _restored(
    cls: type[GuidewayError], args: tuple[Any, ...], fields: dict[str, Any], cause: RemoteError | None
) -> GuidewayError:
    """An error as it was pickled."""
    error = cls.__new__(cls, *args)
    error.args = args
    vars(error).update(fields)
    error.__cause__ = cause
    return error
