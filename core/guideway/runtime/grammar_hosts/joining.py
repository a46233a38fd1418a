"""One import, and one building, for the hosts of several serving processes: a server's front end and its cores."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from guideway.runtime.grammar_hosts.children import Child, answer_of
from guideway.runtime.grammar_hosts.messages import BROKEN, Frames

__all__ = ["VARIABLE", "Meeting", "peer_of", "share_nursery"]

log = logging.getLogger(__name__)

VARIABLE = "GUIDEWAY_NURSERY"
"""The environment variable with the secret that the processes of a server share."""
CONNECTS_WITHIN = 10.0
"""Seconds that it may take to connect to one that listens, and to send it what is wanted."""
LOOKS_EVERY = 0.05
CREDENTIALS = struct.Struct("3i")
"""Process, user and group at the other end, as Linux tells them."""


def share_nursery() -> None:
    """Let this process and those that it starts from now on share what their hosts import, and what they build from the
    same options over the same vocabulary. Only Linux can do that."""
    if sys.platform == "linux":
        os.environ.setdefault(VARIABLE, secrets.token_hex(16))


def peer_of(end: socket.socket) -> int | None:
    """Return the process at the other end; None if it is another user's."""
    pid, user, _ = CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return pid if user == os.getuid() else None


class Meeting:
    """The place where the processes of a server that are to have the same find the nursery, or the zygote, of the first
    of them.

    A socket without a file, which is free again when that one has ended. Both ends see whether the other one is the
    same user's; who does not know the secret does not come there by chance.
    """

    def __init__(self, address: bytes) -> None:
        self._address = address
        self.listener: socket.socket | None = None
        """For the nursery or zygote, where this process is the first."""

    @classmethod
    def of(cls, path: tuple[str, ...], *more: str) -> Meeting | None:
        """The one for modules that are found in these places, and for what has `more` in common; None if this process
        shares nothing."""
        secret = os.environ.get(VARIABLE)
        if not secret or sys.platform != "linux":
            return None
        # what an import may depend on, and the session, among which Linux shares processors; a process that
        # `multiprocessing` spawns has some places twice
        facts = (secret, tuple(dict.fromkeys(path)), sys.executable, _folder(), os.getsid(0), os.getuid(), *more)
        return cls(b"\0guideway-" + hashlib.sha256(repr(facts).encode()).hexdigest().encode())

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        """The nursery or zygote has the listener now."""
        if self.listener is not None:
            self.listener.close()

    def join(self, wanted: Any, *, listens_within: float, answers_within: float) -> tuple[Child, Frames] | None:
        """One that was forked from the one that is here, which is told what is `wanted`; None if none is here that
        listens within so many seconds and answers within so many, and this process is to start one."""
        end = socket.socket(socket.AF_UNIX)
        try:
            if self._connected(end, listens_within):
                if (pid := peer_of(end)) is None:
                    raise PermissionError("it is another user's")
                control, there = Frames(end), Child(pid)
                try:
                    control.send((os.getpid(), wanted))
                    return Child(answer_of(control, pid, answers_within, there)["pid"]), control
                finally:
                    there.close()
        except (OSError, *BROKEN) as error:
            log.info("this process starts hosts of its own, since it can share none: %s", error)
        except BaseException:
            end.close()
            raise
        end.close()
        if self.listener is None:
            self._is_first()  # where whoever was is gone
        return None

    def _connected(self, end: socket.socket, within: float) -> bool:
        """Return whether somebody is at the other end; if not, this process is the first. Raises `OSError`."""
        until = time.monotonic() + within
        end.settimeout(CONNECTS_WITHIN)
        while not self._is_first():
            try:
                end.connect(self._address)
                return True
            except ConnectionRefusedError:  # it is being started, or is gone
                if time.monotonic() > until:
                    raise
                time.sleep(LOOKS_EVERY)
        return False

    def _is_first(self) -> bool:
        """Return whether no other process has one here. Then this one is to start it."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(self._address)
        except OSError:
            listener.close()
            return False
        self.listener = listener
        return True


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return ""
