"""The time of guideway's code on threads that others wait for: the one that decodes, and the event loop.

A sampler in each watched process checks every millisecond where these threads are. As long as a thread is in code of
guideway or of a slow plugin, and neither in a model's forward pass nor waiting for work, that is one span. Spans over
2 ms are recorded, with their most frequent stack and how long the thread computed; for the rest it waited, for a lock,
in a plugin, for the interpreter, or for a processor. A sampler that is over 2 ms late lacked the interpreter or a
processor itself; that is counted, too. All processes use the same clock.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

__all__ = ["LATE", "LONG", "Span", "traced", "watch"]

PERIOD = 0.001
LONG = 0.002
WATCHED = ("MainThread", "guideway-engine", "process_input_sockets")
"""Words in the names of threads: event loops and vLLM's engine core, guideway's engine, vLLM's reader of requests."""
LATE = "sampler"
SWITCH = "on"
"""A file; samples are taken as long as it exists."""
WAITS_FOR_WORK = {("guideway_engine.async_engine", "_run_commands")}
SETTLES = 0.2
"""Seconds until every sampler has seen the switch, if there are processors for all."""
MOST_WAITS = 50
"""Maximum waits of `SETTLES` for a sampler to write its results: on a busy machine it is late."""

THREAD = re.compile(r"^(?:Thread|Current thread) 0x([0-9a-f]+) .*$", re.MULTILINE)
FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)

Stack = tuple[str, ...]


@dataclass(frozen=True)
class Span:
    """An interval in which a thread was in guideway's code without interruption."""

    thread: str
    """The thread's name, with the name of its process."""
    start: float
    end: float
    computed: float = 0.0
    """Seconds of CPU time in it."""
    stack: Sequence[str] = ()
    """The stack, innermost first, only guideway's frames."""
    num_samples: int = 0

    @property
    def waited(self) -> float:
        return self.end - self.start - self.computed


@dataclass
class _Open:
    """A span that has not ended."""

    start: float
    computed: float
    """CPU time of the thread at its beginning."""
    stack: Stack = ()
    last: float = 0.0
    last_computed: float = 0.0
    stacks: Counter[Stack] = field(default_factory=Counter)


def watch(folder: Path) -> None:
    """Sample in this process from now on, whenever `traced` requests it. Further calls do nothing."""
    if not any(thread.name == LATE for thread in threading.enumerate()):
        threading.Thread(target=_Sampler(folder).run, name=LATE, daemon=True).start()


@contextmanager
def traced(folder: Path, spans: list[Span]) -> Iterator[None]:
    """Add to `spans`, when the block has ended, the long spans of all processes that watch with this folder, and for
    each process one with its number of samples. Raises RuntimeError if there were none."""
    (folder / SWITCH).touch()
    time.sleep(SETTLES)
    start = time.monotonic()
    try:
        yield
    finally:
        end = time.monotonic()
        (folder / SWITCH).unlink()
    found = []
    for _ in range(MOST_WAITS):
        time.sleep(SETTLES)
        written = [_read(file, start, end) for file in folder.glob("spans-*")]
        found = list(chain.from_iterable(written))
        if all(any(span.num_samples for span in of_process) for of_process in written):
            break
    if not any(span.num_samples for span in found):
        raise RuntimeError("nothing was watched")
    spans += found


def _read(file: Path, start: float, end: float) -> list[Span]:
    spans = (Span(**json.loads(line)) for line in file.read_text("utf-8").splitlines())
    return [span for span in spans if start <= span.end and span.start <= end]


class _Sampler:
    def __init__(self, folder: Path) -> None:
        self._process = multiprocessing.current_process().name
        self._switch = folder / SWITCH
        self._file = (folder / f"spans-{os.getpid()}").open("w", encoding="utf-8")
        self._open: dict[int, _Open] = {}
        self._dump = os.memfd_create("stacks")
        self._modules: dict[str, str] = {}
        """Names of modules by their source file."""

    def run(self) -> None:
        while True:
            time.sleep(SETTLES / 4)
            if self._switch.exists():
                self._window()

    def _window(self) -> None:
        start = last = time.monotonic()
        num_samples = 0
        while num_samples % 50 or self._switch.exists():
            time.sleep(PERIOD)
            now = time.monotonic()
            late = now - last - PERIOD > LONG
            if late:
                self._tell(Span(self._name(LATE), last, now))
            self._sample(now, late)
            last, num_samples = now, num_samples + 1
        for thread in threading.enumerate():
            self._close(thread)
        self._tell(Span(self._name(LATE), start, last, num_samples=num_samples))

    def _sample(self, now: float, late: bool) -> None:
        stacks = self._stacks()
        for thread in threading.enumerate():
            if thread.ident not in stacks or not any(word in thread.name for word in WATCHED):
                continue
            stack = self._ours(stacks[thread.ident])
            span = self._open.get(thread.ident)
            # between two distant samples it may have been anywhere, unless it has not moved
            if span is not None and (not stack or (late and stack != span.stack)):
                self._close(thread)
                span = None
            if not stack:
                continue
            if span is None:
                span = self._open[thread.ident] = _Open(now, _processor_time(thread.ident))
            span.stack, span.last, span.last_computed = stack, now, _processor_time(thread.ident)
            span.stacks[stack] += 1

    def _close(self, thread: threading.Thread) -> None:
        span = self._open.pop(thread.ident or 0, None)
        if span is not None and span.last - span.start > LONG:
            computed = span.last_computed - span.computed
            ((stack, _),) = span.stacks.most_common(1)
            self._tell(Span(self._name(thread.name), span.start, span.last, computed, stack))

    def _stacks(self) -> dict[int, str]:
        """Return the stack of each thread. The frames are read in one call that holds the interpreter: in Python 3.11,
        walking the frames of a running thread can crash the process."""
        os.ftruncate(self._dump, 0)
        os.lseek(self._dump, 0, os.SEEK_SET)
        faulthandler.dump_traceback(self._dump)
        text = os.pread(self._dump, os.fstat(self._dump).st_size, 0).decode("utf-8", "replace")
        parts = THREAD.split(text)
        return {int(ident, 16): frames for ident, frames in zip(parts[1::2], parts[2::2], strict=True)}

    def _ours(self, frames: str) -> Stack:
        """Return the frames of guideway's code, innermost first; empty if the thread does not work for it. Code that
        guideway calls counts as its own, except vLLM and the forward pass of a model."""
        stack: list[str] = []
        for file, line, name in FRAME.findall(frames):
            module = self._module(file)
            package = module.partition(".")[0]
            if module.startswith("torch.nn.modules") or package == "transformers":
                return ()
            if package.startswith("guideway") or package == "slow_plugins":
                if not stack and (module, name) in WAITS_FOR_WORK:
                    return ()
                stack.append(f"{module}:{line} {name}")
            elif package == "vllm" and not stack:
                return ()
        return tuple(stack)

    def _module(self, file: str) -> str:
        if file not in self._modules:
            by_file = {getattr(of, "__dict__", {}).get("__file__"): name for name, of in list(sys.modules.items())}
            self._modules[file] = by_file.get(file, "")
        return self._modules[file]

    def _name(self, thread: str) -> str:
        return f"{self._process}, {thread}"

    def _tell(self, span: Span) -> None:
        self._file.write(json.dumps(asdict(span)) + "\n")
        self._file.flush()


def _processor_time(thread: int) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread))
