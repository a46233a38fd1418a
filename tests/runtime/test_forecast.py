"""What is expected to be forced: what followed the same tokens, as long as it is drawn and the search for it pays."""

from __future__ import annotations

from guideway.runtime.constraints.forecast import LONGEST_PAUSE, MOST_KNOWN, Forecast, KnownRuns
from hypothesis import given
from hypothesis import strategies as st

STOP = 9
STOPS = frozenset({STOP})


def forecast(known: KnownRuns | None = None, *, saves: bool = True) -> Forecast:
    return Forecast({} if known is None else known, STOPS, saves=saves)


@given(st.lists(st.lists(st.integers(0, STOP), max_size=4), max_size=8), st.booleans())
def test_what_was_told_once_is_known_in_every_sequence(runs: list[list[int]], late: bool) -> None:
    """In one that draws the same, also where the first one was told late: after the forward pass of the next token."""
    known: KnownRuns = {}
    first = forecast(known, saves=False)
    second = forecast(known, saves=False)
    for run in runs:
        if STOP in run:
            run = run[: run.index(STOP) + 1]
        if first.searches():
            first.learn(run)
        tokens = [*(first.run or ()), 77]
        if late and len(tokens) > 1:
            first.accept(tokens[:1], 0)
            assert list(first.run or ()) == tokens[1:-1]
            first.accept(tokens[1:], len(tokens) - 2)
        else:
            first.accept(tokens, len(tokens) - 1)
    for _ in runs:
        if second.run is None:
            break  # an end is never a guess
        assert STOP not in second.run
        second.accept([*second.run, 77], len(second.run))


def test_a_guess_is_the_beginning_up_to_an_end_of_this_sequence() -> None:
    known: KnownRuns = {}
    forecast(known).learn([1, 2, STOP])
    assert Forecast(known, frozenset({2}), saves=True).run == (1,)
    assert Forecast(known, STOPS, saves=True).run == (1, 2)


def test_a_run_that_is_not_drawn_is_guessed_no_more() -> None:
    known: KnownRuns = {}
    forecast(known).learn([1, 2])
    for _ in range(2):
        forecast(known).accept([1, 2, 3], 2)
    for expected in ((1, 2), (1, 2), (1, 2), ()):
        wrong = forecast(known)
        assert wrong.run == expected
        wrong.accept([5], 2)


def test_runs_that_are_drawn_stay_known_when_others_are_forgotten() -> None:
    known: KnownRuns = {}
    forecast(known).learn([1, 2])
    for token_id in range(2 * MOST_KNOWN):
        subject = forecast(known, saves=False)
        assert subject.run == (1, 2)
        subject.accept([1, 2, 10 + token_id], 2)
        subject.learn(())
    assert len(known) == MOST_KNOWN


def test_searches_that_find_nothing_become_rare_and_one_that_pays_brings_them_back() -> None:
    subject, always = forecast(), forecast(saves=False)
    searched = []
    for step in range(2000):
        for each in (subject, always):
            found = each.searches()
            assert each.searches() is found  # also if it is asked twice in a step
            if found:
                each.learn(())
            if each is subject:
                searched.append(found)
            else:
                assert found
            each.accept([step], 0)
    assert sum(searched[:20]) > 15
    assert 0 < sum(searched[-10 * LONGEST_PAUSE :]) < 30
    while not subject.searches():
        subject.accept([3000], 0)
    subject.learn([1, 2, 3, 4])
    subject.accept([1, 2, 3, 4, 5], 4)
    for step in range(10):
        assert subject.searches()
        subject.learn(())
        subject.accept([4000 + step], 0)


def test_a_fork_goes_on_by_itself() -> None:
    subject = forecast()
    subject.learn([1, 2, 3])
    subject.accept([1], 0)
    copy = subject.fork()
    subject.accept([7], 0)
    assert copy.run == (2, 3)
    assert subject.run is None
    assert subject.restart().run == (1, 2, 3)
