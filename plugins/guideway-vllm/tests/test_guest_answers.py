"""What the front end reports on a request, from the reports of its outputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from guideway_vllm.answers import add_up, set_report


def test_the_losses_of_several_outputs_are_listed_once() -> None:
    first, second = ["#/a", "uniqueItems", "too many"], ["#", "contains", "too long"]
    outputs = [SimpleNamespace() for _ in range(3)]
    reports: list[dict[str, Any]] = [{"losses": [first]}, {"losses": [first, second]}, {"strategy": "x"}]
    for output, report in zip(outputs, reports, strict=True):
        set_report(output, report)
    result = SimpleNamespace(outputs=outputs, kv_transfer_params=None)
    add_up(result)
    assert result.kv_transfer_params == {
        "guideway": {"strategy": "x", "losses": [first, second], "outputs": reports},
    }
