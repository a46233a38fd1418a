"""The process that all grammar hosts of this one descend from: what they need is imported there once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from guideway.errors import PluginLoadError
from guideway.plugins.index import PluginRecord
from guideway.runtime.grammar_hosts.children import Child, answer_of
from guideway.runtime.grammar_hosts.environment import host_environment
from guideway.runtime.grammar_hosts.joining import Meeting
from guideway.runtime.grammar_hosts.messages import Frames
from guideway.runtime.grammar_hosts.upkeep import shown

__all__ = ["Nursery", "module_path"]

IMPORT_SECONDS = 120.0
"""For importing plugins, which the serving process has imported before."""

LISTENS_WITHIN = 10.0
"""Seconds until one that was started listens for other processes."""

JOINS_WITHIN = 60.0
"""Seconds until another process's has imported what this one needs, and forked one for it."""

ANSWER_SECONDS = 10.0


def module_path() -> tuple[str, ...]:
    """Return where modules are found here."""
    return tuple(entry for entry in sys.path if isinstance(entry, str))


class Nursery:
    """Forks zygotes. There is one for all whose modules are found in the same places and that are given the same
    environment variables, as long as one of them is open; started with the first zygote, and anew if it is lost, and
    all its descendants with it. Where several processes share what they import (`share_nursery`), it is forked from
    that of another one.

    It is no child of this process, and ends when this one closes its socket, also by being killed: what kills the
    descendants of a server one by one, as vLLM does, may rely on each of them being there until its turn.
    """

    _all: ClassVar[dict[tuple[int, tuple[str, ...], tuple[str, ...]], Nursery]] = {}
    _of_all = threading.RLock()  # the collector of garbage may call `release` at any moment

    def __init__(self, path: tuple[str, ...], variables: tuple[str, ...]) -> None:
        self._key = os.getpid(), path, variables
        self._num_users = 0
        self._lock = threading.RLock()
        self._process: Child | None = None
        self._control: Frames | None = None
        self._ended: list[int] = []
        """The zygotes that are to be reaped."""

    @classmethod
    def of(cls, path: tuple[str, ...], variables: tuple[str, ...] = ()) -> Nursery:
        """The one for modules that are found in these places, given these variables beside the usual ones
        (`host_environment`). Give it back with `release`."""
        with cls._of_all:
            key = os.getpid(), path, variables
            nursery = cls._all.setdefault(key, cls(path, variables))
            nursery._num_users += 1
            return nursery

    def release(self) -> None:
        """One of its users needs it no more."""
        with self._of_all:
            self._num_users -= 1
            if self._num_users or self._key[0] != os.getpid():
                return
            del self._all[self._key]
        with self._lock:
            self._end()

    def fork(self, records: Sequence[PluginRecord], end: socket.socket, listener: socket.socket | None) -> Child:
        """A zygote, which imports what the records name, reads what it is to do from this end of a socket, and lets
        other processes join it at the `listener`. Raises OSError, EOFError and ValueError where the nursery is lost,
        `PluginLoadError` where there can be none."""
        with self._lock:
            if self._control is None or self._control.has_news():  # it says nothing unasked, but that it is gone
                self._start(records)
            self._reap()
            try:
                answer = self._ask(("fork", tuple(records)), IMPORT_SECONDS, *filter(None, (end, listener)))
            except TimeoutError as error:
                names = ", ".join(record.id for record in records)
                raise PluginLoadError(
                    f"{names}: importing took more than {IMPORT_SECONDS:g} s in the process that hosts are forked "
                    "from, but "
                    "works in this process; find out what the import waits for there, or set grammar_host and "
                    "modifier_host to 'inline'",
                    plugin=records[0].id if len(records) == 1 else "runtime",
                ) from error
        if "error" in answer:
            raise OSError(answer["error"])
        return Child(answer["pid"])

    def reap(self, child: Child) -> None:
        """Let a zygote go that has ended or was killed. Waits for no import: then it is done with the next fork."""
        child.close()
        self._ended.append(child.pid)
        if self._lock.acquire(blocking=False):
            try:
                self._reap()
            except (OSError, EOFError, ValueError):
                pass  # it is lost, and all it forked with it
            finally:
                self._lock.release()

    def _reap(self) -> None:
        while self._ended and self._control is not None:
            self._ask(("reap", self._ended.pop()), ANSWER_SECONDS)

    def _ask(self, command: Any, seconds: float, *ends: socket.socket) -> Any:
        """Return what the process answers, to which the `ends` go. Ends it where there is no answer: a late one would
        be taken for the next."""
        assert self._control is not None and self._process is not None
        try:
            self._control.send(command)
            if ends:
                socket.send_fds(self._control.socket, [b"\0"], [end.fileno() for end in ends])
                for end in ends:  # what is forked from this process meanwhile must not keep them
                    end.close()
            return answer_of(self._control, self._process.pid, seconds)
        except BaseException:
            self._end()
            raise

    def _start(self, records: Sequence[PluginRecord]) -> None:
        self._end()
        _, path, variables = self._key
        meeting = Meeting.of(path, *variables)
        joined = None
        if meeting is not None:
            joined = meeting.join(tuple(records), listens_within=LISTENS_WITHIN, answers_within=JOINS_WITHIN)
        if joined is not None:
            self._process, self._control = joined
            joined[1].socket.settimeout(ANSWER_SECONDS)
            return
        with meeting or nullcontext():
            self._start_anew(meeting)

    def _start_anew(self, meeting: Meeting | None) -> None:
        if not sys.executable:
            raise PluginLoadError(
                "hosts are started with sys.executable, which is empty here; set grammar_host and modifier_host to "
                "'inline'",
                plugin="runtime",
            )
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        listener = None if meeting is None else meeting.listener
        # modules are found where the serving process finds them, and not in the folder it was started in
        descriptors = [descriptor] if listener is None else [descriptor, listener.fileno()]
        command = [
            sys.executable,
            "-P",
            "-m",
            "guideway.runtime.host",
            ",".join(map(str, descriptors)),
            shown(os.getpid()),
        ]
        _, places, variables = self._key
        path = os.pathsep.join(entry for entry in places if entry)
        control = Frames(ours)
        ours.settimeout(ANSWER_SECONDS)  # one that was stopped takes no long command
        try:
            # a group of its own, so that a terminal's signals are not for it, and the session of this one: Linux shares
            # processors among sessions first. Its output never mixes with ours
            starter = subprocess.Popen(
                command,
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=2,
                process_group=0,
                env={**host_environment(variables), "PYTHONPATH": path},
            )
        except BaseException:
            control.close()
            raise
        finally:
            theirs.close()
            if listener is not None:
                listener.close()
        try:
            if meeting is not None and listener is not None:
                control.send_bytes(meeting.key)
            self._process = Child(answer_of(control, starter.pid, IMPORT_SECONDS)["pid"])
            self._control = control
        except BaseException:
            control.close()
            starter.kill()
            raise
        finally:
            starter.wait()

    def _end(self) -> None:
        control, process, self._control, self._process = self._control, self._process, None, None
        self._ended.clear()
        if control is not None:
            control.close()
        if process is not None:
            process.end_orphan(1.0)
