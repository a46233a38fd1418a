"""The process of one worker: runs commands until the pipe is closed."""

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
"""Command: number, number of the last reply that the parent has read, start and length of the block in the commands'
memory. Numbers increase; a command whose number is not higher than the last was sent twice and is dropped. It is short
enough to be written to the pipe atomically."""

REPLY = struct.Struct("4q")
"""Reply: number of the command, outcome, start and length of the block in the replies' memory."""

RAISED, WENT_WELL, BUSY, READY = range(4)
"""Outcomes of a command; BUSY and READY are sent during a command when compilation begins and ends."""

STEPS = frozenset({"forward", "sample", "execute"})
"""Methods that make up a step."""

DEVICE_LOST = 87
"""Exit status of a process whose device is lost."""

GRACE_SECONDS = 5.0
"""Seconds until a worker ends after its parent has ended."""


@dataclass(frozen=True, slots=True)
class Files:
    """Descriptors that a worker's process inherits."""

    commands: int
    command_memory: int
    replies: int
    reply_memory: int
    parent_pipe: int
    """Pipe without data that is closed when the parent ends."""


def main(files: Files, rank: int, num_workers: int) -> NoReturn:
    """Run commands until the pipe is closed, then exit. The first command is the function that creates the worker."""
    _serve(files, rank, num_workers)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # skip the rest of the interpreter's shutdown: it takes up to ten seconds once torch.distributed was used
    os._exit(0)


def _serve(files: Files, rank: int, num_workers: int) -> None:
    # Ctrl-C reaches every process of a terminal; the parent handles it
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
                os._exit(DEVICE_LOST)  # nothing can be closed cleanly any more
            parts = pack(pack_error(error))
            how = RAISED
        command = None  # free the command's memory while waiting for the next
        with suppress(BrokenPipeError):  # the parent has ended, so the commands end too
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
    """End this process `GRACE_SECONDS` after its parent, even if it is busy."""
    os.read(parent_pipe, 1)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
