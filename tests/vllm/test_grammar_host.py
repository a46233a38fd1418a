"""Another grammar host in the runtime, which the guest has never heard of: grammars and matchers in a process of their
own, behind a pipe. The same tokens come out, also where that process is killed on the way."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from guideway.api import CompiledGrammar, Constraint, FillJob, GrammarStrategy, Matcher, Support, Vocabulary
from guideway.api.bitmask import Bitmask
from guideway.runtime import Runtime
from guideway.runtime.compiler import Compiler
from guideway.runtime.grammar_mask import GrammarMask
from numpy.typing import NDArray

GUIDEWAY = {"grammar": ["llguidance", "xgrammar"]}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT = 'Anna Berg is 34 years old. {"name":"Bert","age":35}'


# The other process


def host(pipe: Any, classes: Mapping[str, type[GrammarStrategy]], vocabulary: Vocabulary) -> None:
    """Compile, and keep matchers, for whoever holds the other end."""
    strategies = {name: cls(vocabulary, {}) for name, cls in classes.items()}
    objects: dict[int, Any] = {}

    def keep(value: Any) -> int:
        objects[len(objects)] = value
        return len(objects) - 1

    def fill(name: str, jobs: list[tuple[int, Sequence[int], int]], bitmask: Bitmask) -> Any:
        own = [FillJob(objects[matcher], drafts, row) for matcher, drafts, row in jobs]
        return strategies[name].fill(own, bitmask), bitmask

    commands: dict[str, Callable[..., Any]] = {
        "compile": lambda name, constraint: keep(strategies[name].compile(constraint)),
        "nbytes": lambda grammar: objects[grammar].nbytes,
        "matcher": lambda grammar, stops: keep(objects[grammar].matcher(stops)),
        "fork": lambda matcher: keep(objects[matcher].fork()),
        "fill": fill,
        "call": lambda matcher, method, args: getattr(objects[matcher], method)(*args),
    }
    while True:
        try:
            command, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((None, commands[command](*args)))
        except Exception as error:
            pipe.send((error, None))


# This process


class Line:
    """To a process that is started again where it has died."""

    def __init__(self, classes: Mapping[str, type[GrammarStrategy]], vocabulary: Vocabulary) -> None:
        self._given = classes, vocabulary
        self._lock = threading.Lock()
        self.process: Any = None
        self.num_started = 0
        self.num_fills = 0

    def ask(self, command: str, *args: Any) -> Any:
        with self._lock:
            self.num_fills += command == "fill"
            if self.process is None or not self.process.is_alive():
                self._start()
            self._pipe.send((command, args))
            error, result = self._pipe.recv()
        if error is not None:
            raise error
        return result

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=host, args=(theirs, *self._given), daemon=True)
        self.process.start()
        theirs.close()
        self.num_started += 1

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        if self.process is not None:
            self._pipe.close()
            self.process.join()


class Elsewhere(GrammarStrategy):
    """A strategy whose work is done at the other end of a line."""

    capabilities, max_rollback = frozenset({"fork"}), None

    def __init__(self, inner: GrammarStrategy, line: Line) -> None:
        super().__init__(inner.vocabulary, {})
        self.inner, self.line = inner, line
        self.name, self.kinds = inner.name, inner.kinds  # type: ignore[misc]

    def supports(self, constraint: Constraint) -> Support:
        return self.inner.supports(constraint)

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return GrammarElsewhere(self, constraint)

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        told = [(job.matcher.handle, job.draft_token_ids, job.first_row) for job in jobs]  # type: ignore[attr-defined]
        accepted, bitmask[:] = self.line.ask("fill", self.name, told, bitmask)
        counts: NDArray[np.int32] = accepted
        return counts


class GrammarElsewhere(CompiledGrammar):
    def __init__(self, strategy: Elsewhere, constraint: Constraint) -> None:
        self.strategy, self.constraint = strategy, constraint
        self.handle, self.of = self._compiled()

    def _compiled(self) -> tuple[int, int]:
        handle = self.strategy.line.ask("compile", self.strategy.name, self.constraint)
        return handle, self.strategy.line.num_started

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        line = self.strategy.line
        if self.of != line.num_started or not line.process.is_alive():  # it went with the process
            self.handle, self.of = self._compiled()
        return MatcherElsewhere(line, line.ask("matcher", self.handle, stop_token_ids))

    @property
    def nbytes(self) -> int:
        return int(self.strategy.line.ask("nbytes", self.handle))


class MatcherElsewhere(Matcher):
    def __init__(self, line: Line, handle: int) -> None:
        self.line, self.handle = line, handle

    def accept(self, token_ids: Sequence[int]) -> int:
        return int(self.line.ask("call", self.handle, "accept", (list(token_ids),)))

    def validate(self, token_ids: Sequence[int]) -> int:
        return int(self.line.ask("call", self.handle, "validate", (list(token_ids),)))

    def rollback(self, num_tokens: int) -> None:
        self.line.ask("call", self.handle, "rollback", (num_tokens,))

    def is_terminated(self) -> bool:
        return bool(self.line.ask("call", self.handle, "is_terminated", ()))

    def is_accepting(self) -> bool:
        return bool(self.line.ask("call", self.handle, "is_accepting", ()))

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        _, bitmask[:] = self.line.ask("fill", "llguidance", [(self.handle, (), row)], bitmask)

    def fork(self) -> Matcher:
        return MatcherElsewhere(self.line, self.line.ask("fork", self.handle))


class ElsewhereMask(GrammarMask):
    """The runtime's grammar mask, with matchers elsewhere; kills their process before a certain fill."""

    kill_before: ClassVar[int | None] = None
    lines: ClassVar[list[Line]] = []

    def __init__(self, strategies: Mapping[str, GrammarStrategy], compiler: Compiler, context: Any) -> None:
        self.line = Line({name: type(s) for name, s in strategies.items()}, context.vocabulary)
        self.lines.append(self.line)
        super().__init__({name: Elsewhere(s, self.line) for name, s in strategies.items()}, compiler, context)

    def prepare(self, batch: Any, states: Any) -> Any:
        if self.kill_before is not None and self.line.num_fills >= self.kill_before:
            type(self).kill_before = None
            self.line.kill()
        return super().prepare(batch, states)

    def close(self) -> None:
        super().close()
        self.line.close()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[ElsewhereMask]]:
    monkeypatch.setattr(Runtime, "grammar_host", ElsewhereMask)
    yield ElsewhereMask
    ElsewhereMask.kill_before = None
    while ElsewhereMask.lines:
        ElsewhereMask.lines.pop().close()


def generated(llm: Any) -> list[tuple[list[int], str]]:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    constraints: list[dict[str, Any]] = [
        {"json": SCHEMA},
        {"json": SCHEMA, "extra": {"guideway.strategy": "xgrammar"}},
        {"regex": "[a-z]{3,20}"},
        {"choice": ["perhaps", "perhaps not"]},
        {"grammar": 'root ::= "ab" | "cd" "e"+ "f"'},
        {},
    ]
    params = []
    for constraint in constraints:
        extra = constraint.pop("extra", None)
        outputs = StructuredOutputsParams(**constraint) if constraint else None
        params.append(SamplingParams(temperature=0, max_tokens=60, structured_outputs=outputs, extra_args=extra))
    outputs = llm.generate([PROMPT] * len(params), params)
    return [(list(output.outputs[0].token_ids), output.outputs[0].finish_reason) for output in outputs]


def test_another_grammar_host_is_picked_up_and_the_tokens_stay(
    start: Callable[..., Any], elsewhere: type[ElsewhereMask], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Runtime, "grammar_host", GrammarMask)
        here = generated(start(GUIDEWAY, speculative_config=NGRAM))
    assert {reason for _, reason in here[:5]} == {"stop"}

    llm = start(GUIDEWAY | {"compile_threads": 1}, speculative_config=NGRAM)
    assert generated(llm) == here
    front_end, core = elsewhere.lines
    assert (front_end.num_started, core.num_started) == (1, 1)
    assert front_end.num_fills == 0
    assert core.num_fills > 10

    # the runtime makes the matchers of a host that died anew, and vLLM sees nothing of it
    elsewhere.kill_before = core.num_fills + 9
    assert generated(llm) == here
    assert core.num_started == 2

    # where the process is gone for good, only what needs it ends
    def no_more(line: Line) -> None:
        raise OSError("no more processes")

    elsewhere.kill_before = core.num_fills + 9
    with monkeypatch.context() as patch:
        patch.setattr(Line, "_start", no_more)
        ended = generated(llm)
    assert ended[-1] == here[-1]
    assert "error" in {reason for _, reason in ended[:5]}
    assert {reason for _, reason in ended[:5]} <= {"error", "stop"}
    assert generated(llm) == here


def test_the_host_is_closed_with_vllm(start: Callable[..., Any], elsewhere: type[ElsewhereMask]) -> None:
    llm = start(GUIDEWAY | {"compile_threads": 3})
    generated(llm)
    processes = [line.process for line in elsewhere.lines]
    assert [process.is_alive() for process in processes] == [True, True]
    del llm
    start(GUIDEWAY)
    assert [process.is_alive() for process in processes] == [False, False]
