"""Strategies over the official suite and over real schemas, with ``guideway coverage``.

`totals.json` has the current numbers, and differences in either direction fail: if a strategy improves, update the
file.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from guideway.command_line.program import main

EXPECTED = json.loads((Path(__file__).parent / "totals.json").read_text("utf-8"))

pytestmark = pytest.mark.corpora


@pytest.mark.parametrize("what", sorted(EXPECTED))
def test_strategies_serve_as_many_schemas_as_before(what: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    given = request.config.getoption("--corpora")
    if given is None:
        raise pytest.UsageError("these tests need --corpora FOLDER (make test-corpora CORPORA=folder)")
    corpus, order = what.split(", properties_order=") if ", " in what else (what, "declared")
    chains = [word for chain in EXPECTED[what] for word in ("--strategy", chain)]
    flags = ["--properties-order", order, "--output", str(tmp_path)]
    assert main(["coverage", f"{given}/{corpus}", *chains, *flags]) == 0
    totals = json.loads((tmp_path / "totals.json").read_text("utf-8"))["totals"]
    found = {",".join(each["strategies"]): each["kinds"] for each in totals}
    assert found == EXPECTED[what]
    assert all(kinds["failed"] == kinds["silent"] == 0 for kinds in found.values())
