"""A `fill` that a strategy overrides gets the strategy's own matchers, in this process and in grammar hosts."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guideway.api import FillJob, GrammarStrategy, Regex, SamplingParams
from guideway.api.bitmask import allocate
from guideway.errors import ConformanceError
from guideway.plugins.limits import Limits
from guideway.runtime.sequences.replay import ReplayingMatcher, fill_jobs, new_matcher

from tests.support.distributions import install
from tests.support.hostility import PROMPT, VOCABULARY, host
from tests.support.hosts import inline, makes_hosts, served
from tests.support.own_fill import BREAKS, MOST, Own, Strategy
from tests.support.stages import one_in

PARAMS = [
    SamplingParams(constraint=Regex("[a-z]{3,12}(x|y)"), temperature=1.0, seed=seed, max_tokens=24) for seed in range(3)
]


def _outputs(results: Any) -> list[tuple[int, ...]]:
    assert [result.error for result in results] == [None] * len(results)
    return [result.token_ids for result in results]


@pytest.mark.parametrize("num_drafts", [0, MOST, MOST + 2])
def test_in_this_process(num_drafts: int, caplog: pytest.LogCaptureFixture) -> None:
    wanted = _outputs(inline(num_drafts=num_drafts).generate([PROMPT] * 3, PARAMS))
    with caplog.at_level(logging.WARNING):
        results = host(strategies=(Strategy,), num_drafts=num_drafts).generate([PROMPT] * 3, PARAMS)
    assert _outputs(results) == wanted
    assert "filling row by row" not in caplog.text


@pytest.mark.parametrize("num_drafts", one_in(2, [0, MOST + 2]))
def test_in_grammar_hosts(tmp_path: Path, num_drafts: int) -> None:
    install(tmp_path, "own-fill", {"grammar.own-fill": "tests.support.own_fill"})
    wanted = _outputs(inline(num_drafts=num_drafts).generate([PROMPT] * 3, PARAMS))
    with makes_hosts(tmp_path, ["own-fill"], Limits()) as make:
        results = served(make(), num_drafts=num_drafts).generate([PROMPT] * 3, PARAMS)
    assert _outputs(results) == wanted


@pytest.mark.parametrize("num_drafts", [0, MOST])
def test_a_fill_that_breaks_fails_its_own_sequence_alone(tmp_path: Path, num_drafts: int) -> None:
    install(tmp_path, "own-fill", {"grammar.own-fill": "tests.support.own_fill"})
    wanted = _outputs(inline(num_drafts=num_drafts).generate([PROMPT] * 3, PARAMS))
    breaks = replace(PARAMS[0], constraint=Regex(BREAKS), close=False)
    with makes_hosts(tmp_path, ["own-fill"], Limits()) as make:
        hosted = served(make(), num_drafts=num_drafts)
        first, bad, *others = hosted.generate([PROMPT] * 4, [PARAMS[0], breaks, *PARAMS[1:]])
    assert "grammar.own-fill failed in fill: RuntimeError: a bug" in str(bad.error)
    assert _outputs([first, *others]) == wanted


def _each(text: bytes) -> list[int]:
    """Return one token for each byte."""
    return [VOCABULARY.tokens.index(bytes([byte])) for byte in text]


def _job(strategy: GrammarStrategy, drafts: bytes, row: int) -> FillJob:
    compiled = strategy.compile(Regex("[a-z]{3,12}"))
    return FillJob(new_matcher(strategy, compiled, VOCABULARY.stop_token_ids), tuple(_each(drafts)), row)


def test_long_and_short_drafts_in_one_batch() -> None:
    strategy = Strategy(VOCABULARY, {})
    jobs = [_job(strategy, drafts, row) for drafts, row in ((b"abcd", 0), (b"ab", 5), (b"", 8), (b"a.bc", 9))]
    before = [job.matcher for job in jobs]
    bitmask = allocate(14, VOCABULARY.logits_width)
    assert fill_jobs(strategy, jobs, bitmask).tolist() == [4, 2, 0, 1]
    assert [job.matcher for job in jobs] == before
    wanted = np.zeros_like(bitmask)
    GrammarStrategy.fill(strategy, jobs, wanted)
    assert all((bitmask[row] == wanted[row]).all() for row in (*range(5), *range(5, 8), 8, 9, 10))


def test_drafts_use_up_what_can_be_rolled_back() -> None:
    strategy = Strategy(VOCABULARY, {})
    job = _job(strategy, b"ab", 0)
    matcher = job.matcher
    assert isinstance(matcher, ReplayingMatcher)
    assert matcher.accept(tuple(_each(b"xyz"))) == 3
    assert fill_jobs(strategy, [job], allocate(3, VOCABULARY.logits_width)).tolist() == [2]
    assert isinstance(matcher.inner, Own)
    assert matcher.inner.undoable == 0
    matcher.rollback(2)
    assert matcher.accept(tuple(_each(b"aaaaaaaaaaa"))) == 11


def test_the_matchers_come_back_from_a_fill_that_breaks() -> None:
    class Breaks(Strategy):
        def fill(self, jobs: Any, bitmask: Any) -> Any:
            raise RuntimeError("broken")

    class Short(Strategy):
        def fill(self, jobs: Any, bitmask: Any) -> Any:
            return np.zeros(1, dtype=np.int32)

    for cls, error in ((Breaks, RuntimeError), (Short, ConformanceError)):
        strategy = cls(VOCABULARY, {})
        jobs = [_job(strategy, drafts, row) for drafts, row in ((b"abc", 0), (b"", 4), (b"", 5))]
        with pytest.raises(error):
            fill_jobs(strategy, jobs, allocate(6, VOCABULARY.logits_width))
        assert all(isinstance(job.matcher, ReplayingMatcher) for job in jobs)
