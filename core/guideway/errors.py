"""The exceptions of guideway, and helpers for errors of plugins.

A plugin maps its library's exceptions to these once, where it calls the library, with ``raise ... from``. A refused
token is a return value, never an exception.
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
"""Messages for exhausted memory, of Python, C++, Rust, the operating system and guideway."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

MAX_EXCERPT = 60
"""Maximum characters of a line to show around a position."""

MAX_TEXT = 2000
"""Maximum characters to keep of a foreign message."""


class GuidewayError(Exception):
    """Base class of all errors that guideway raises. It pickles with all its fields; its cause is unpickled as a
    `RemoteError`."""

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException.__reduce__ calls the class with `args` only, without keyword-only fields
        cause = self.__cause__ and RemoteError.of(self.__cause__)
        return _restore, (type(self), self.args, dict(vars(self)), cause)


class RemoteError(GuidewayError):
    """The message of an exception in another process that could not be pickled. `type_name` is the name of the
    exception's type."""

    def __init__(self, message: str, *, type_name: str) -> None:
        super().__init__(message)
        self.type_name = type_name

    @staticmethod
    def of(error: BaseException) -> RemoteError:
        """Convert `error` and its causes to text."""
        chain = [error]
        while (cause := chain[-1].__cause__) is not None and cause not in chain:
            chain.append(cause)
        remote: RemoteError | None = None
        for link in reversed(chain):
            remote = _to_remote(link, remote)
        assert remote is not None
        return remote


class PluginError(GuidewayError):
    """An error in a plugin.

    `plugin` is its canonical id, ``distribution/kind.name``, or ``kind.name`` if the distribution is unknown. `phase`
    is the time of the failure, such as ``in compile``; it may be empty.
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
    """The component is installed but cannot or may not run here; the message gives the reason."""


class NotCertified(PluginUnavailable):
    """Selected components have no valid conformance verdict, and ``[plugins] require`` is ``certified``; the message
    names all of them, and `plugin` the first."""


class PluginLoadError(PluginError):
    """Importing or looking up a selected component, or checking it against its contract, failed."""


class PluginExited(PluginLoadError):
    """Importing a selected component ends the process. `status` is the exit status, negative for a signal."""

    def __init__(self, message: str, *, plugin: str, status: int) -> None:
        super().__init__(message, plugin=plugin)
        self.status = status


class SequencesFailed(GuidewayError):
    """Some sequences of a step failed. A worker mixin raises this from `before_step` or `after_step` to end only
    these. `sequence_ids` are their ids, from `WorkerStep.sequence_ids`."""

    def __init__(self, message: str, *, sequence_ids: Iterable[str]) -> None:
        super().__init__(message)
        self.sequence_ids = tuple(sequence_ids)


class Unhealthy(GuidewayError):
    """The host is unhealthy and refuses even valid requests."""


class WorkerLost(GuidewayError):
    """A worker ended or does not answer. Its current work is lost; the scheduler's state is not."""


class InvalidConfiguration(GuidewayError, ValueError):
    """An engine, host or plugin option is wrong. `field` names the option."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class InvalidRequest(GuidewayError, ValueError):
    """The request cannot be served. `field` names the part that the caller must change."""

    def __init__(self, message: str, *, field: str = "request") -> None:
        super().__init__(message)
        self.field = field


class InvalidAnswer(GuidewayError, ValueError):
    """The answer is not an instance of the requested type, not valid JSON, or (in `guideway.extract`) not complete."""


class InvalidGrammar(InvalidRequest):
    """The constraint is malformed or allows no output at all, so no strategy can serve it."""

    def __init__(self, message: str, *, field: str = "constraint") -> None:
        super().__init__(message, field=field)


class UnsupportedGrammar(InvalidRequest):
    """The constraint is well formed, but this strategy cannot serve it. `feature` names the missing feature."""

    def __init__(self, message: str, *, feature: str, field: str = "constraint") -> None:
        super().__init__(message, field=field)
        self.feature = feature


class UnsupportedCapability(InvalidRequest):
    """A plugin or host does not offer the requested capability."""


class LimitExceeded(InvalidRequest):
    """The request is larger, deeper or slower than the configured limits allow, or serving it ran out of memory."""


def failure_of(plugin: str, message: str, *, phase: str = "") -> GuidewayError:
    """Return the error of a request at which a plugin failed. `message` contains the type of the cause. The error is a
    `LimitExceeded` if a grammar or a modifier ran out of memory, in any library, else a `PluginError`: the memory of a
    device or worker is not a limit of a request."""
    kind, _, name = plugin.rpartition("/")[2].partition(".")
    field = {"grammar": "constraint", "modifier": f"modifiers.{name}"}.get(kind)
    if field is None or OUT_OF_MEMORY.search(message) is None:
        return PluginError(message, plugin=plugin, phase=phase)
    return LimitExceeded(f"{message}; it ran out of memory: ask for less, or raise limits.memory_bytes", field=field)


class DeadEnd(GuidewayError):
    """A matcher that has not terminated has no legal token. Ends only that request."""


class ConformanceError(GuidewayError):
    """A plugin violated its contract at run time. The message quotes the violated sentence."""


def contain(error: BaseException) -> None:
    """Re-raise interrupts; return for everything that may be a plugin's failure.

    A host catches BaseException around a plugin, because a Rust panic (pyo3's ``PanicException``) and ``SystemExit``
    are not `Exception`, and calls this first. An interrupt is raised by a signal handler in the main thread: Ctrl-C's
    KeyboardInterrupt, or the SystemExit of a handler that ends the program. In other threads, and if no handler raises,
    as in worker processes and under an event loop, these exceptions count as the plugin's.

    Python's own handler of Ctrl-C does not appear in the traceback, so a KeyboardInterrupt raised by a plugin is
    re-raised too, but only once: if the host retries the interrupted work and the same ``raise`` statement interrupts
    it again, it counts as the plugin's.
    """
    if not isinstance(error, KeyboardInterrupt | SystemExit) or current_thread() is not main_thread():
        return
    handlers = [getsignal(number) for number in valid_signals()]
    origin = None
    if not any(_is_in_traceback(handler, error) for handler in handlers):
        if default_int_handler not in handlers or not isinstance(error, KeyboardInterrupt):
            return
        origin, depth = _raise_statement(error), _depth()
        is_passing = depth < getattr(error, PASSED, 0)  # an outer host calls this for the same exception
        setattr(error, PASSED, depth)
        if origin is not None and origin == INTERRUPTED.origin and not is_passing:
            return
    INTERRUPTED.origin = origin
    raise error


def record_progress() -> None:
    """Note that the interrupted work is done. A host calls this at the end of a step."""
    INTERRUPTED.origin = None


@dataclass(slots=True)
class _Interrupted:
    """The last interrupt that `contain` re-raised."""

    origin: tuple[CodeType, int] | None = None
    """The ``raise`` statement that raised it; None if a signal or native code did."""


INTERRUPTED = _Interrupted()

PASSED = "_guideway_passed"
"""Attribute of a re-raised interrupt: the stack depth at which it was re-raised."""


CALLS: dict[int, blame] = {}
"""The current call into a plugin, by thread id, for diagnosing slow calls."""


@dataclass(slots=True)
class blame:  # noqa: N801 - used like a function
    """Context manager around a call into a plugin, ``with blame(plugin, phase):``. Converts exceptions of the call to
    an error that names the plugin and the phase.

    `phase` is the name of the called method, or words such as ``while it was built``. `error` is the class of the
    raised error; for `PluginError` it may be `LimitExceeded` instead (`failure_of`). Errors of the types in `passing`,
    which the plugin may raise, are not converted, nor are interrupts (`contain`).
    """

    plugin: str
    phase: str
    error: type[PluginError] = field(default=PluginError, kw_only=True)
    passing: tuple[type[BaseException], ...] = field(default=(), kw_only=True)
    keeps_deadlines: bool = field(default=False, kw_only=True)
    """True if the call enforces its own timeout."""
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
        """The phase as a phrase that follows a verb."""
        return self.phase if " " in self.phase else f"in {self.phase}"


def close_each(parts: Iterable[tuple[str, Callable[[], object]]]) -> None:
    """Close parts, first to last, each given as ``kind.name`` of its plugin and the method to call. An exception is
    logged, and the other parts are still closed; an interrupt is raised after the last."""
    with ExitStack() as last_first:
        for plugin, close in reversed(list(parts)):
            last_first.callback(_close, plugin, close)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ``did you mean 'this'?`` with the known word closest to `word`; empty if none is close."""
    import difflib  # rarely needed

    close = difflib.get_close_matches(str(word)[:80], list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def excerpt(text: str, at: int) -> str:
    """Return the line of `text` that contains index `at`, and a line with a caret below that character, both indented.
    A long line is cut around the character."""
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


def _is_in_traceback(handler: Any, error: BaseException) -> bool:
    """Return whether the signal handler is in the traceback of `error`."""
    while isinstance(handler, partial):
        handler = handler.func
    code, trace = getattr(handler, "__code__", None), error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    return trace is not None


def _depth() -> int:
    """Return the number of frames on the stack."""
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count


def _raise_statement(error: BaseException) -> tuple[CodeType, int] | None:
    """Return the ``raise`` statement that raised `error`, as its code object and offset. Signals never arrive in
    one."""
    import dis  # rarely needed

    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_lasti < 0:
        return None
    code = trace.tb_frame.f_code
    return (code, trace.tb_lasti) if dis.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS" else None


def quoted(names: Iterable[str]) -> str:
    """Quote keywords for a message, so that names such as `not` are not read as words."""
    return ", ".join(f"`{name}`" for name in names)


def printable(text: str) -> str:
    """Return `text` with control characters escaped, so that requests cannot send control sequences to a terminal: all
    of Unicode's, except line feed and tab, and those that change the text direction."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def passable(text: str) -> str:
    """Return at most `MAX_TEXT` characters of `text`, `printable` and without lone surrogates."""
    return printable(text.encode("utf-8", "backslashreplace").decode()[:MAX_TEXT])


def text_of(error: BaseException) -> str:
    """Return ``Type: message``, `passable`, even if the error's ``__str__`` fails."""
    if isinstance(error, RemoteError):  # contains both already
        return passable(str(error))
    return passable(_with_memory(f"{type(error).__name__}: {_message(error)}", error))


def without_frames(error: E) -> E:
    """Drop the traceback of an error that will be stored, such as in a result, and the local variables in the
    tracebacks of its causes. These may hold whole requests and refer back to the error."""
    seen: list[BaseException] = [error]  # an error with several waiters may be its own context
    while (cause := seen[-1].__cause__ or seen[-1].__context__) is not None and not any(cause is one for one in seen):
        clear_frames(cause.__traceback__)
        seen.append(cause)
    return error.with_traceback(None)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as unprintable:  # of a foreign class
        contain(unprintable)
        return "its message cannot be printed"


def _with_memory(text: str, error: BaseException) -> str:
    """Add `(MemoryError)` to the text of `error` if only a cause shows that memory ran out."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        if OUT_OF_MEMORY.search(f"{type(cause).__name__}: {_message(cause)}"):
            return text if OUT_OF_MEMORY.search(text) else f"{text} (MemoryError)"
        chain.append(cause)
    return text


def _to_remote(error: BaseException, cause: RemoteError | None) -> RemoteError:
    if isinstance(error, RemoteError):
        return error
    name, text = type(error).__qualname__, _message(error)
    remote = RemoteError(_with_memory(f"{name}: {text}" if text else name, error), type_name=name)
    for note in getattr(error, "__notes__", ()):
        remote.add_note(str(note))
    remote.__cause__ = cause
    return remote


def _restore(
    cls: type[GuidewayError], args: tuple[Any, ...], fields: dict[str, Any], cause: RemoteError | None
) -> GuidewayError:
    """Unpickle a `GuidewayError`."""
    error = cls.__new__(cls, *args)
    error.args = args
    vars(error).update(fields)
    error.__cause__ = cause
    return error
