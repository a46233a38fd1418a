"""The tables of ``docs/which-strategy.md`` agree with the measurements of the probes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from guideway.json_schema import KEYWORDS

from tests.docs import keyword_table
from tests.docs.keyword_table import FEW, PAGE, TABLES, main, tables


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_every_table_of_the_repository_is_there() -> None:
    packages = {path.parent for path in keyword_table.ROOT.glob("plugins/*/src/**/support.json")}
    assert packages == {keyword_table.ROOT / "plugins" / package for package in TABLES.values()}


def test_every_keyword_has_a_row_and_every_pair_counts() -> None:
    text = PAGE.read_text("utf-8")
    rows = re.findall(r"^\| `([^`]+)` \|(?: (?:✓|strict|named|refused) \|){6}$", text, re.MULTILINE)
    assert set(rows) == {name for _, table in tables().values() for name in table if "+" not in name}
    for name, (_, table) in tables().items():
        (listed,) = re.findall(rf"^\*\*{name}\*\*(?:: none\.)?\n\n?((?:- .*\n)*)", text, re.MULTILINE)
        pairs = 0
        for line in listed.splitlines():
            firsts, _, others = line.partition(" with ")
            left_out = sum(int(number) for number in re.findall(r"and (\d+) more", others))
            shown = len(re.findall("`[^`]+`", others))
            assert shown <= FEW
            pairs += len(re.findall("`[^`]+`", firsts)) * (shown + left_out)
        assert pairs == sum("+" in pair for pair in table)


def test_every_keyword_has_a_row() -> None:
    assert {name.partition(":")[0] for _, table in tables().values() for name in table} >= set(KEYWORDS)


def test_a_page_that_is_not_up_to_date_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text("utf-8").replace("| `not` | refused", "| `not` | ✓"), encoding="utf-8")
    monkeypatch.setattr(keyword_table, "PAGE", page)
    assert main(["--check"]) == 1
    assert "make keywords" in capsys.readouterr().out
    assert main([]) == 0
    assert main(["--check"]) == 0
    page.write_text("# A page without places\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="has no place for keywords"):
        main([])
