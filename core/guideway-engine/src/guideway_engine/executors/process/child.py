"""The process of one worker: calls its methods as commands come, until there are no more."""

from __future__ import annotations

import atexit
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from guideway.errors import GuidewayError, contain, text_of

from guideway_engine.executors.devices import device_is_lost
from guideway_engine.executors.process.blocks import BlockReader, BlockWriter
from guideway_engine.executors.process.compiling import Compiling
from guideway_engine.executors.process.messages import pack, pack_error, unpack

__all__ = ["BUSY", "COMMAND", "DEVICE_LOST", "RAISED", "REPLY", "STEPS", "WENT_WELL", "Files", "main"]

COMMAND = struct.Struct("4q")
"""Number, number of the last reply the parent has read, and where in the commands' memory the block is: start and
length. Numbers rise; one that is not higher than the last was sent twice and is dropped. Being short, it passes
through the pipe in one piece."""

REPLY = struct.Struct("4q")
"""Number of the command, how it went, and where in the replies' memory the block is."""

RAISED, WENT_WELL, BUSY, READY = range(4)
"""The outcome of a command; or, before that, the news that something is compiled in it, and that this is done."""

STEPS = frozenset({"forward", "sample", "execute"})
"""The methods of which a step consists."""

DEVICE_LOST = 87
"""The status with which a process ends that can use its device no more."""

GRACE_SECONDS = 5.0
"""The seconds that a worker may take to end after its parent has gone."""


@dataclass(frozen=True, slots=True)
class Files:
    """Descriptors a worker's process inherits."""

    commands: int
    command_memory: int
    replies: int
    reply_memory: int
    parent_pipe: int
    """A pipe without data, which closes when the parent is gone."""


def main(files: Files, rank: int, num_workers: int) -> NoReturn:
    """Serve until the commands end, and end the process. The first command is the function that makes the worker."""
    _serve(files, rank, num_workers)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # what else an interpreter does at its end only costs time: up to ten seconds once torch.distributed was used
    os._exit(0)


def _serve(files: Files, rank: int, num_workers: int) -> None:
    # Ctrl-C goes to every process of a terminal; the parent says what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(files.parent_pipe,), daemon=True).start()
    reader, writer = BlockReader(files.command_memory), BlockWriter(files.reply_memory)
    worker: Any = None
    compiling = Compiling(partial(_say, files.replies))
    for number, read, start, length in _commands(files.commands):
        writer.free(read)
        compiling.watch()
        try:
            command = _read(reader.read(start, length))
            if worker is None:
                worker = command(rank, num_workers)
                parts = pack(None)
            else:
                parts = _result(worker, *command)
            how = WENT_WELL
        except BaseException as error:
            if device_is_lost():
                sys.stderr.write(f"worker {rank} has lost its device: {text_of(error)}\n")
                sys.stderr.flush()
                os._exit(DEVICE_LOST)  # nothing can be closed in order any more
            parts = pack(pack_error(error))
            how = RAISED
        command = None  # nothing of a step is kept while waiting for the next
        with suppress(BrokenPipeError):  # the parent is gone, and with it the commands end
            os.write(files.replies, REPLY.pack(number, how, *writer.write(number, parts)))
        if worker is None:
            return
    close = getattr(worker, "close", None)
    if close is not None:
        close()


def _say(replies: int, compiles: bool) -> None:
    with suppress(BrokenPipeError):
        os.write(replies, REPLY.pack(0, BUSY if compiles else READY, 0, 0))


def _read(parts: list[memoryview]) -> Any:
    try:
        return unpack(parts)
    except BaseException as error:
        contain(error)
        raise GuidewayError(
            f"the arguments cannot be unpickled in the worker process: {text_of(error)}; their classes and functions "
            "must be importable there"
        ) from error


def _result(worker: Any, method: str, args: tuple[Any, ...]) -> list[memoryview]:
    result = getattr(worker, method)(*args)
    try:
        return pack(result)
    except BaseException as error:
        contain(error)
        raise GuidewayError(f"a {type(result).__name__} cannot be sent to another process: {error}") from error


def _commands(pipe: int) -> Iterator[tuple[int, int, int, int]]:
    last = -1
    while frame := os.read(pipe, COMMAND.size):
        number, read, start, length = COMMAND.unpack(frame)
        if number > last:
            last = number
            yield number, read, start, length


def _end_with_parent(parent_pipe: int) -> None:
    """End this process some time after its parent, whatever it is busy with."""
    os.read(parent_pipe, 1)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
