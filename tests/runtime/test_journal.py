"""The journal: recording, rewinding and replaying steps."""

from __future__ import annotations

import numpy as np
import pytest
from guideway.api import Request, SamplingParams, SequenceInfo
from guideway.runtime import Journal


def journal() -> Journal:
    request = Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams())
    subject = Journal(request, SequenceInfo(index=0, seed=3, prompt_token_ids=(1,)))
    subject.record([5], None)
    subject.record([6, 7], {"m": {"x": np.array([1.0, 2.0])}})
    subject.record([8], {"m": {"x": np.array([3.0])}})
    return subject


def test_steps_come_back_as_they_were_recorded() -> None:
    (first, none), (second, heard), (third, also) = journal().steps()
    assert (first, second, third, none) == ([5], [6, 7], [8], None)
    assert heard is not None
    assert also is not None
    assert (heard["m"]["x"].tolist(), also["m"]["x"].tolist()) == ([1.0, 2.0], [3.0])


@pytest.mark.parametrize(("num_tokens", "steps", "with_feedback"), [(0, 0, 0), (1, 1, 0), (3, 2, 1), (4, 3, 2)])
def test_rewind_forgets_the_steps_after(num_tokens: int, steps: int, with_feedback: int) -> None:
    subject = journal()
    subject.token_ids.append(9)  # of a step that was interrupted while being recorded
    subject.rewind(num_tokens)
    assert subject.token_ids == [5, 6, 7, 8][:num_tokens]
    assert len(subject.steps()) == steps
    assert len(subject.feedback) == with_feedback


def test_a_fork_shares_nothing_that_changes() -> None:
    parent = journal()
    child = parent.fork(SequenceInfo(index=1, seed=3, prompt_token_ids=(1,)))
    child.record([9], None)
    parent.rewind(1)
    assert (child.token_ids, parent.token_ids) == ([5, 6, 7, 8, 9], [5])
    assert len(child.feedback) == 2
