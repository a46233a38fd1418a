"""The page on guarantees has every rule of the guard with its limit, and the limits of each strategy."""

from __future__ import annotations

import re

import pytest
from guideway.api.limits import RULES
from guideway.plugins import PluginIndex, Plugins
from guideway.runtime.work import metrics
from prometheus_client import Counter

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs/guarantees.md").read_text("utf-8")
GRAMMARS = [record for record in PluginIndex.scan().records if record.kind == "grammar"]


def shown(limit: int) -> str:
    return "none" if limit >= 1 << 60 else f"{limit:,}"


def test_it_has_every_rule_as_the_code_has_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
    assert rows == [(name, rule.counts, shown(rule.limit)) for name, rule in RULES.items()]


@pytest.mark.parametrize("name", sorted({record.name for record in GRAMMARS}))
def test_it_has_what_a_strategy_has_instead(name: str) -> None:
    written = re.search(rf"^\| `{name}` \| ([^|]+) \|$", PAGE, re.MULTILINE)
    limits = Plugins().load("grammar", name).limits
    told = ", ".join(f"`{rule}` {shown(limit)}" for rule, limit in limits.items()) or None
    assert (written[1] if written else None) == told


def test_it_has_every_metric() -> None:
    shown = re.findall(r"^\| `(guideway_\w+)(?:\{([\w,]+)\})?` \|", PAGE, re.MULTILINE)
    found = [getattr(metrics, name) for name in metrics.__all__]
    assert {name: tuple(filter(None, labels.split(","))) for name, labels in shown} == {
        f"{metric._name}_total" if isinstance(metric, Counter) else metric._name: metric._labelnames for metric in found
    }
