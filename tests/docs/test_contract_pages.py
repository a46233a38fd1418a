"""The pages of ``docs/contracts`` have the rules of the conformance suite."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from guideway_conformance.contract_pages import main, page
from guideway_conformance.registry import KIND_MODULES, checks

PAGES = Path(__file__).parents[2] / "docs" / "contracts"


def test_the_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(PAGES)]) == 0, capsys.readouterr().out
    assert {path.stem for path in PAGES.iterdir()} == set(KIND_MODULES)


@pytest.mark.parametrize("kind", KIND_MODULES)
def test_a_page_has_each_rule_once(kind: str) -> None:
    rows = [line for line in page(kind).splitlines() if f"| `{kind}." in line]
    assert len(rows) == len(checks(kind))
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)


def test_a_page_that_is_not_up_to_date_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    (tmp_path / "device.md").write_text("x")
    (tmp_path / "hooks.md").unlink()
    assert main(["--check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "device.md is not" in out and "hooks.md is not" in out and "worker.md" not in out


def test_the_checks_that_the_guide_names_exist() -> None:
    text = (PAGES.parent / "conformance.md").read_text("utf-8")
    named = set(re.findall(r"\b(?:grammar|device|modifier)\.(?!mine|md)\w+", text))
    known = {check.id: check.rule for kind in KIND_MODULES for check in checks(kind)}
    assert named <= known.keys()
    (told,) = re.findall(r"^FAILED (\S+)\n  rule: (.*)$", text, re.MULTILINE)
    assert known[told[0]] == told[1]
