"""Program of a test: write answers to the file ``argv[1]`` in runs that end at any moment, and compare what they
leave.

Each run completes its prompts in a random order and ends before a random line of code, by Ctrl-C or SIGKILL; the next
one resumes. The name of each answer that was written is appended to the file ``argv[2]``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from guideway import Completion, GenerationResult, SamplingParams
from guideway_engine.command_line.answers import Answers
from guideway_engine.command_line.jobs import Job
from guideway_engine.command_line.lines import Lines

OURS = ("answers.py", "lines.py", "resuming.py", "files.py")
NAMES = "hgfedcba"
CASES = 40
MOST_DISTURBED = 6
LITTLE = 20
write = os.write

jobs = [Job(name, name, name, SamplingParams()) for name in NAMES]
digests = {name: f"digest of {name}" for name in NAMES}


def run(path: Path, told: Path, order: Sequence[int], *, resume: bool) -> None:
    with told.open("ab", buffering=0) as file, Lines(str(path), resume=resume, digests=digests) as lines:
        answers = Answers(jobs, lines, lines.done)
        try:
            for index in order:
                if (name := jobs[index].id) not in lines.done:
                    output = Completion(text=name * 30, token_ids=(1,))
                    answers.keep(index, GenerationResult(request_id=name, outputs=(output,)))
                    file.write(name.encode())
        except KeyboardInterrupt:
            answers.write_rest()


def disturb(after: int, how: Callable[[], None]) -> None:
    """Let `how` happen before the line of code with this number, from 1; never for 0."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal after
        if not frame.f_code.co_filename.endswith(OURS):
            return None
        after -= event == "line"
        if event == "line" and not after:
            how()
        return trace

    sys.settrace(trace)


def interrupt() -> None:
    raise KeyboardInterrupt


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def attempt(path: Path, told: Path, order: Sequence[int], after: int, how: Callable[[], None]) -> None:
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in ((-signal.SIGKILL, 130, 0) if after else (0,))
        return
    disturb(after, how)
    try:
        run(path, told, order, resume=path.exists())
    except KeyboardInterrupt:
        os._exit(130)
    os._exit(0)


def write_little(number: int, data: bytes) -> int:
    """Write as a system may do: less than was asked."""
    return write(number, data[:LITTLE])


def main(path: Path, told: Path) -> None:
    os.write = write_little
    attempt(path, told, range(len(NAMES)), 0, kill)
    wanted = path.read_bytes()
    draw = random.Random(7)
    for case in range(CASES):
        path.unlink()
        told.write_bytes(b"")
        for turn in range(MOST_DISTURBED + 1):
            after = draw.randrange(1, 500) if turn < MOST_DISTURBED else 0
            attempt(path, told, draw.sample(range(len(NAMES)), len(NAMES)), after, draw.choice((interrupt, kill)))
            content = path.read_bytes() if path.exists() else b""
            found = [json.loads(line)["id"] for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
            assert set(told.read_text("utf-8")) <= set(found), f"case {case}, run {turn} lost an answer: {found}"
            assert len(set(found)) == len(found), f"case {case}, run {turn} wrote an answer twice: {found}"
        assert content == wanted, f"case {case} ended with {found}"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
