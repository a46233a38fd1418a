"""Which probes are refused. Their effect is tested with an engine, in the repository's tests."""

from __future__ import annotations

from typing import Any

import pytest
from guideway.api import InvalidConfiguration, ModifierContext, Vocabulary
from guideway_steering import Steering


@pytest.mark.parametrize(
    ("probes", "message"),
    [
        ({"a": {"weight": [], "token_ids": [1]}}, "weight must be finite numbers"),
        ({"a": {"weight": [float("nan")], "token_ids": [1]}}, "weight must be finite numbers"),
        ({"a": {"weight": [1.0], "token_ids": [9]}}, "token_ids must be from 0 to 1"),
        ({"a": {"weight": [1.0], "token_ids": [1]}, "b": {"weight": [1.0, 2.0], "token_ids": [1]}}, "all probes need"),
        ({"a": 1}, "modifier.steering.probes.a needs the option 'weight'"),
    ],
)
def test_wrong_probes_are_refused_at_start_up(probes: dict[str, Any], message: str) -> None:
    vocabulary = Vocabulary(tokens=[b"a", b""], stop_token_ids=frozenset({1}))
    context = ModifierContext(vocabulary=vocabulary, max_num_sequences=1, max_model_len=8)
    with pytest.raises(InvalidConfiguration, match=message):
        Steering({"probes": probes}, context)
