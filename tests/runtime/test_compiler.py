"""The compiler: one compilation for equal constraints, a cache bounded by bytes."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from guideway.api import CompiledGrammar, Constraint, JsonSchema, Matcher, Regex, UnsupportedGrammar
from guideway.runtime.constraints.candidates import CandidateCache, choose
from guideway.runtime.constraints.compiler import Compilation, Compiler
from guideway.runtime.work.shared_work import PluginUses
from guideway.runtime.work.steps import run
from guideway.runtime.work.threads import Threads
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.vocabularies import tiny

VOCABULARY = tiny()


class Sized(CompiledGrammar):
    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        return self._nbytes


class Counting(ReferenceStrategy):
    """Counts its compilations, and blocks each one until released."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, {})
        self.compiled: list[str] = []
        self.go = threading.Event()
        self.go.set()

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        self.compiled.append(constraint.source())
        assert self.go.wait(timeout=30)
        if constraint.source() == "bad":
            raise UnsupportedGrammar("bad", feature="bad")
        return Sized(100)


def compile_(compiler: Compiler, strategy: Counting, constraint: Constraint) -> Compilation:
    return run(compiler.compile(choose(constraint, {"counting": strategy}).candidates, constraint)).result(timeout=30)


def test_equal_constraints_in_flight_compile_once() -> None:
    strategy, compiler = Counting(), Compiler(Threads("compile", 4), PluginUses(), cache_bytes=1000)
    strategy.go.clear()
    candidates = choose(Regex("a"), {"counting": strategy}).candidates
    futures = [run(compiler.compile(candidates, Regex("a"))) for _ in range(8)]
    strategy.go.set()
    grammars = {id(future.result(timeout=30).grammar) for future in futures}
    assert len(grammars) == 1
    assert strategy.compiled == ["a"]
    assert run(compiler.compile(candidates, Regex("a"))).done()


@pytest.mark.parametrize("isolates", [False, True])
def test_tenants_share_what_is_compiled_unless_they_are_isolated(isolates: bool) -> None:
    """Both running and finished compilations are shared."""
    strategy = Counting()
    compiler = Compiler(Threads("compile", 4), PluginUses(), cache_bytes=1000, isolates_tenants=isolates)
    known = CandidateCache({"counting": strategy}, isolates_tenants=isolates)
    candidates = known.of("a").chosen(Regex("x")).candidates
    assert Regex("x") in known.of("a")
    assert (Regex("x") in known.of("b")) is not isolates
    strategy.go.clear()
    futures = [run(compiler.compile(candidates, Regex("x"), tenant)) for tenant in ("a", "b", "a", "")]
    strategy.go.set()
    assert len({id(future.result(timeout=30).grammar) for future in futures}) == (3 if isolates else 1)
    for tenant in ("a", "b", ""):
        assert run(compiler.compile(candidates, Regex("x"), tenant)).done()
    run(compiler.compile(candidates, Regex("x"), "new")).result(timeout=30)
    assert len(strategy.compiled) == (4 if isolates else 1)


def test_the_cache_is_bounded_by_bytes_and_drops_the_oldest_use() -> None:
    strategy, compiler = Counting(), Compiler(Threads("compile", 1), PluginUses(), cache_bytes=250)
    for pattern in ("a", "b", "a", "c"):
        compile_(compiler, strategy, Regex(pattern))
    assert compiler.held_bytes == 200
    compile_(compiler, strategy, Regex("a"))
    assert strategy.compiled == ["a", "b", "c"]
    compile_(compiler, strategy, Regex("b"))
    assert strategy.compiled == ["a", "b", "c", "b"]


def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    strategy, compiler = Counting(), Compiler(Threads("compile", 1), PluginUses(), cache_bytes=99)
    compile_(compiler, strategy, Regex("a"))
    compile_(compiler, strategy, Regex("a"))
    assert (strategy.compiled, compiler.held_bytes) == (["a", "a"], 0)


def test_the_order_of_keys_is_part_of_the_constraint() -> None:
    strategy, compiler = Counting(), Compiler(Threads("compile", 1), PluginUses(), cache_bytes=1000)
    for schema in ({"type": "string", "maxLength": 2}, {"maxLength": 2, "type": "string"}):
        compile_(compiler, strategy, JsonSchema(schema))
    compile_(compiler, strategy, JsonSchema('{"type": "string",   "maxLength": 2}'))
    assert len(strategy.compiled) == 2


def test_a_failure_is_not_cached() -> None:
    strategy, compiler = Counting(), Compiler(Threads("compile", 1), PluginUses(), cache_bytes=1000)
    for _ in range(2):
        with pytest.raises(UnsupportedGrammar):
            compile_(compiler, strategy, Regex("bad"))
    assert strategy.compiled == ["bad", "bad"]


def test_a_compilation_that_every_request_has_canceled_does_not_begin() -> None:
    strategy, compiler = Counting(), Compiler(Threads("compile", 1), PluginUses(), cache_bytes=1000)
    strategy.go.clear()

    def begin(pattern: str) -> Future[Compilation | None]:
        candidates = choose(Regex(pattern), {"counting": strategy}).candidates
        return run(compiler.compile(candidates, Regex(pattern)))

    first, *others = [begin(pattern) for pattern in "abcc"]
    assert others[0].cancel() and others[1].cancel()
    strategy.go.set()
    assert first.result(timeout=30) and others[2].result(timeout=30)
    assert strategy.compiled == ["a", "c"]
