"""Commands at a terminal of their own, as a person would start them."""

from __future__ import annotations

import os
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

__all__ = ["Terminal", "at_terminal", "shown_at_terminal"]


class Terminal:
    """A pseudo-terminal with a process at the other end."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.shown = b""
        """All bytes read."""
        self._master = master

    def read_until(self, wanted: bytes) -> None:
        """Read until the terminal has shown these bytes."""
        while wanted not in self.shown:
            self.shown += os.read(self._master, 65536)

    def read_all(self) -> bytes:
        """Read until the last process closed the terminal, and return all that it has shown."""
        while True:
            try:
                self.shown += os.read(self._master, 65536)
            except OSError:  # the other end is closed
                return self.shown


@contextmanager
def at_terminal(
    command: Sequence[str | bytes],
    *,
    columns: int = 80,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
) -> Iterator[Terminal]:
    """Start a command in its own session, with a terminal of `columns` columns as its input, output and errors; its
    output goes to `stdout` if given. Wait for its end on leaving."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (40, columns))
    variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    variables |= {"TERM": "xterm", **(environment or {})}
    with subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave if stdout is None else stdout,
        stderr=slave,
        env=variables,
        start_new_session=True,
    ) as process:
        os.close(slave)
        try:
            yield Terminal(master, process)
        finally:
            os.close(master)


def shown_at_terminal(
    command: Sequence[str | bytes], *, columns: int = 80, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Return a command's exit status and everything sent to its terminal, with plain line feeds."""
    with at_terminal(command, columns=columns, environment=environment) as terminal:
        shown = terminal.read_all()
    return terminal.process.returncode, shown.decode().replace("\r\n", "\n")
