"""``conform matrix``: plugins across, rules down."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest
from guideway.errors import InvalidConfiguration
from guideway_conformance.formats.html import html
from guideway_conformance.matrix import Matrix, markdown, sign
from guideway_conformance.outcomes import Result
from guideway_conformance.registry import Obligation, checks
from guideway_conformance.report import Report


@pytest.fixture
def reports(core_report: Report) -> list[Report]:
    failed = replace(core_report.results[-1], outcome="fail", detail='it said <b> & "no" | more')
    other = replace(core_report, plugin="other/device.<other>", version="2.0").with_results([failed])
    worker = replace(core_report, kind="worker", plugin="x/worker.x", results=(), declared=(), traits=())
    return [core_report, other, worker]


class Page(HTMLParser):
    """The parts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[list[str]] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells[-1].append(data)


@pytest.mark.slow
def test_the_page_has_a_row_per_rule_and_a_column_per_plugin(reports: list[Report]) -> None:
    text = html(Matrix.of(reports))
    page = Page(text)
    assert page.open == []
    summary, rows = page.cells[1:4], [row for row in page.cells[4:] if row]
    assert [row[0] for row in summary] == ["certified", "failed", "incomplete"]
    owed = sum(
        check.tier == "core"
        for check in checks("device")
        if check.id in {r.obligation.check for r in reports[0].results}
    )
    assert [row[2] for row in summary[:2]] == [f"{owed} of {owed}", f"{owed - 1} of {owed}"]
    assert len(rows) == len(checks("device")) + len(checks("worker"))
    of_devices = rows[: len(checks("device"))]
    assert {len(row) for row in of_devices} == {2}
    assert sum("✗" in row for row in of_devices) == 1
    assert page.tags.count("table") == 3


@pytest.mark.slow
def test_the_page_needs_nothing_else(reports: list[Report]) -> None:
    text = html(Matrix.of(reports))
    assert Page(text).links == [] and "url(" not in text and "@import" not in text and "script" not in Page(text).tags
    assert "prefers-color-scheme: dark" in text
    assert "<other>" not in text and "said <b>" not in text


def test_markdown_has_a_row_per_rule(reports: list[Report]) -> None:
    lines = markdown(Matrix.of(reports)).splitlines()
    for check in checks("device"):
        (row,) = [line for line in lines if f"| `{check.id.partition('.')[2]}` " in line]
        assert row.replace("\\|", "").count("|") == 4
    assert sum("| ✗ |" in line for line in lines) == 1
    assert "| `gwt-mine/device.mine` | 1.0 | 1.0 | certified | smoke, core |" in lines


def test_markdown_says_what_each_plugin_offers(core_report: Report) -> None:
    """The results decide: declared and met, declared and broken, or not declared."""
    fused = "masked_argmax"
    obligations = [Obligation(check.id) for check in checks("device") if check.capability == fused]
    met = replace(core_report, declared=(fused,), results=tuple(Result(o, "pass") for o in obligations))
    worse = [Result(obligations[0], "known_failure"), Result(obligations[1], "fail"), Result(obligations[2], "error")]
    table = Matrix.of([met, met.with_results(worse[:1]), met.with_results(worse), core_report])
    lines = markdown(table).splitlines()
    assert f"| ✓ | ~ | ✗ | · | `{fused}` |" in lines
    assert "| · | · | · | · | trait `bfloat16` |" in lines
    labels = [offer.label.replace("`", "") for offer in table.tables[0].offers]
    traits = ["trait bfloat16", "trait fused", "trait torch"]
    assert labels == ["apply_token_lists", fused, "masked_sample", "warp_masked", *traits]


def test_signs() -> None:
    obligation = Obligation("device.x", "refusal")
    assert sign(Result(obligation, "pass")) == "R"
    assert sign(Result(obligation, "fail")) == "✗"
    assert sign(None) == "·"
    assert (
        len({sign(Result(Obligation("device.x"), o)) for o in ("pass", "fail", "known_failure", "not_run", "error")})
        == 5
    )


def test_a_kind_without_checks_is_refused(core_report: Report) -> None:
    with pytest.raises(InvalidConfiguration, match="executor"):
        Matrix.of([replace(core_report, kind="executor")])
