"""A second zygote, forked from the first when that was ready: it waits to take its place."""

from __future__ import annotations

import select
import socket
from contextlib import suppress

from guideway.runtime.grammar_hosts.children import Child, answer_of
from guideway.runtime.grammar_hosts.messages import Frames
from guideway.runtime.grammar_hosts.nursery import ANSWER_SECONDS

__all__ = ["Spare"]


class Spare:
    """Forked by the zygote at the other end of `control`, beside what this process does. It is nobody's child, so that
    it outlives zygote and nursery; it shares their memory and does nothing, so that it costs next to none."""

    def __init__(self, control: Frames) -> None:
        ours, theirs = socket.socketpair()
        self._control = Frames(ours)
        ours.settimeout(ANSWER_SECONDS)
        try:
            with theirs:
                control.send(("spare", None))
                socket.send_fds(control.socket, [b"\0"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise

    def is_lost(self) -> bool:
        """Return whether it has ended."""
        poll = select.poll()
        poll.register(self._control.socket, 0)  # it has said its number, which nobody has read yet
        return bool(poll.poll(0))

    def take_over(self, seconds: float) -> tuple[Child, Frames]:
        """Take over the process that is a zygote from now on; its socket waits for so long. Raises OSError, EOFError
        and ValueError where it is lost, and does not answer."""
        child = None
        try:
            child = self._child()
            self._control.send(())
            answer_of(self._control, child.pid, ANSWER_SECONDS)
        except BaseException:
            self._control.close()
            if child is not None:
                child.end_orphan(0.0)
            raise
        self._control.socket.settimeout(seconds)
        return child, self._control

    def close(self) -> None:
        """End it."""
        with suppress(OSError, EOFError, KeyError, ValueError):
            child = self._child()
            self._control.socket.shutdown(socket.SHUT_RDWR)  # a fork of this process may have the socket, too
            child.end_orphan(1.0)
        self._control.close()

    def _child(self) -> Child:
        return Child(answer_of(self._control, 0, ANSWER_SECONDS)["pid"])
