"""Sharing of one import and one build of plugins by several serving processes: a server's front end and its cores."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from guideway_hosts.line import Line
from guideway_hosts.messages import BROKEN
from guideway_hosts.process import Process, watch

__all__ = ["VARIABLE", "Listener", "Meeting", "peer_of", "share_fork_server"]

log = logging.getLogger(__name__)

VARIABLE = "GUIDEWAY_FORK_SERVER"
"""The environment variable with the secret that the processes of a server share."""
LISTENS_WITHIN = 10.0
"""Seconds until the fork server of another process, which has been started, accepts connections."""
LOOKS_EVERY = 0.05
CREDENTIALS = struct.Struct("3i")
"""PID, user and group of the process at the other end, as Linux reports them."""
NUM_BYTES = 32
"""Bytes of a nonce, and of a proof."""
MOST_UNPROVEN = 64
"""Most connections without a proof. One more closes the oldest."""


def share_fork_server() -> None:
    """Let this process and the processes that it starts later share their hosts' imports, and plugins built from the
    same options and vocabulary. Has no effect outside Linux."""
    if sys.platform == "linux":
        os.environ.setdefault(VARIABLE, secrets.token_hex(16))


def peer_of(end: socket.socket) -> int:
    """Return the PID of the process at the other end. Raises `PermissionError` if it belongs to another user."""
    pid, user, _ = CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    if user != os.getuid():
        raise PermissionError("the other process belongs to another user")
    return int(pid)


def _proof(key: bytes, role: bytes, nonces: bytes) -> bytes:
    """Return the bytes that prove that the process in this role knows the key. `nonces` are the listening process's
    nonce, followed by the joining process's nonce."""
    return hmac.digest(key, role + nonces, "sha256")


class Meeting:
    """The address at which the processes of a server find the fork server of the first of them.

    It is an abstract socket, without a file, so it is free again when the listening process ends. Every process in the
    network namespace can list it and connect to it. Both ends therefore prove that they know the key before they read
    or send anything else.
    """

    def __init__(self, address: bytes, key: bytes) -> None:
        self._address = address
        self.key = key
        """Derived from the secret, as the address is. Neither reveals the other."""
        self.listener: socket.socket | None = None
        """The listening socket for the fork server, if this process is the first."""

    @classmethod
    def of(cls, path: tuple[str, ...], *variables: str) -> Meeting | None:
        """Return the meeting for these module folders and variables; None if this process shares nothing."""
        secret = os.environ.get(VARIABLE)
        if not secret or sys.platform != "linux":
            return None
        # all that imports may depend on, and the session, because Linux divides processors among sessions; a process
        # spawned by `multiprocessing` has some folders twice
        folder = Path().stat()[1:3]
        facts = (tuple(dict.fromkeys(path)), sys.executable, folder, os.getsid(0), os.getuid(), *variables)
        uses = [repr((use, facts)).encode() for use in ("address", "key")]
        address, key = (hmac.digest(secret.encode(), use, "sha256") for use in uses)
        return cls(b"\0guideway-" + address.hex().encode(), key)

    def join(self, within: float) -> Line | None:
        """Return the socket to a fork server that was forked from the one at this address.

        None if this process must start one itself: there is none, it does not accept connections within
        `LISTENS_WITHIN` seconds or answer `within` seconds, or its proof is wrong.
        """
        end = socket.socket(socket.AF_UNIX)
        try:
            if self._connect(end):
                return self._enter(end, within)
        except (OSError, *BROKEN) as error:
            log.info("this process starts hosts of its own, since it can share none: %s", error)
            if self.listener is None:
                self._is_first()  # takes the address if the process that had it has ended
        except BaseException:
            end.close()
            raise
        end.close()
        return None

    def _connect(self, end: socket.socket) -> bool:
        """Return True if another process accepts the connection, and False if this process is the first. Raises
        `OSError`."""
        until = time.monotonic() + LISTENS_WITHIN
        end.settimeout(LISTENS_WITHIN)
        while not self._is_first():
            try:
                end.connect(self._address)
                return True
            except (ConnectionRefusedError, BlockingIOError):  # it is starting or has ended, or its queue is full
                if time.monotonic() > until:
                    raise
                time.sleep(LOOKS_EVERY)
        return False

    def _enter(self, end: socket.socket, within: float) -> Line:
        """Prove to the fork server at the other end that this process knows the key, and let it fork another one."""
        there = Process(peer_of(end))
        line = Line(end, there)
        line.look = watch(there.pid, within)
        nonces = line.receive_exactly(NUM_BYTES) + (ours := secrets.token_bytes(NUM_BYTES))
        end.sendall(ours + _proof(self.key, b"joins", nonces))
        if not hmac.compare_digest(line.receive_exactly(NUM_BYTES), _proof(self.key, b"listens", nonces)):
            raise PermissionError("the other process does not know the secret")
        line.process = Process(line.receive()["pid"])
        return line

    def _is_first(self) -> bool:
        """Return whether the address was free. Then this process has it, and must start the fork server."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(self._address)
        except OSError:
            listener.close()
            return False
        self.listener = listener
        return True


class Listener:
    """The socket at which a fork server accepts other processes, with the connections that are not proved yet.

    It waits for none of them: before it is trusted, a process may send only its nonce and proof, in one piece.
    """

    def __init__(self, listening: socket.socket, key: bytes) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._key = key
        self._unproven: dict[socket.socket, bytes] = {}
        """The nonce sent over each connection, the oldest first."""

    def sockets(self) -> list[socket.socket]:
        """Return the sockets to wait for."""
        return [self._listening, *self._unproven]

    def admit(self, ready: Iterable[socket.socket]) -> Iterator[socket.socket]:
        """Yield the connections of processes that know the key. `ready`: the sockets at which something has arrived."""
        for end in ready:
            if end is self._listening:
                self._accept()
            elif (nonce := self._unproven.pop(end, None)) is not None:
                if self._is_proven(end, nonce):
                    yield end
                else:
                    end.close()

    def close(self) -> None:
        """Close all sockets in this process."""
        for end in self.sockets():
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            end, _ = self._listening.accept()
            try:
                peer_of(end)
                end.setblocking(False)
                nonce = secrets.token_bytes(NUM_BYTES)
                end.send(nonce)
            except OSError:
                end.close()
                return
            self._unproven[end] = nonce
            if len(self._unproven) > MOST_UNPROVEN:
                oldest = next(iter(self._unproven))
                del self._unproven[oldest]
                oldest.close()

    def _is_proven(self, end: socket.socket, nonce: bytes) -> bool:
        with suppress(OSError):
            proof = end.recv(2 * NUM_BYTES)
            nonces = nonce + proof[:NUM_BYTES]
            if hmac.compare_digest(proof[NUM_BYTES:], _proof(self._key, b"joins", nonces)):
                end.send(_proof(self._key, b"listens", nonces))
                return True
        return False
