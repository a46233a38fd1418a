"""Results of workflows are compared as far as arrays and floating-point numbers can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from guideway.api import GuidewayError
from guideway_conformance.workflow.subject import same


@dataclass(frozen=True)
class Sparse:
    words: tuple[int, ...]
    weights: np.ndarray


def test_results_with_arrays_are_compared() -> None:
    one, other = ([Sparse((1, 2), np.array([0.5, third]))] for third in (0.25, 0.75))
    assert same(one, [Sparse((1, 2), np.array([0.5, 0.25]))])
    assert not same(one, other)
    assert not same(one, [])


def test_results_of_several_kinds_are_compared() -> None:
    assert same({"a": (1, np.array(["x"]))}, {"a": (1, np.array(["x"]))})
    assert not same({"a": np.array(["x"])}, {"a": np.array(["y"])})
    assert same(GuidewayError("one"), GuidewayError("two"))
    assert not same(GuidewayError("one"), 1.0)
