"""``conform matrix --html``: a static site without external resources."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from guideway.errors import InvalidConfiguration
from guideway_conformance.formats.badge import badge, svg
from guideway_conformance.formats.site import site, write_site
from guideway_conformance.report import Report


@pytest.fixture
def reports(core_report: Report) -> list[Report]:
    """Return a certified report, and a failed one with a long name that widens every element without a limit."""
    failed = replace(core_report.results[-1], outcome="fail", detail='it said <b> & "no"' + " x" * 90 + "y" * 90)
    known = replace(core_report.results[3], outcome="known_failure", detail="bug 17")
    name = "a-distribution-of-somebody-else-with-a-name-that-does-not-end/device.other"
    return [core_report, replace(core_report, plugin=name, version=None).with_results([failed, known])]


class Page(HTMLParser):
    """A page's unclosed tags, links and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open[-1] != "style":
            self.texts.append(data.strip())


def test_every_link_leads_to_a_file_of_the_site(reports: list[Report]) -> None:
    files = site(reports)
    names = {f"{stem}.{end}" for stem in (r.stem for r in reports) for end in ("html", "svg", "json")}
    assert files.keys() == {"index.html", "matrix.html", *names}
    linked = set()
    for name, text in files.items():
        if name.endswith(".html"):
            page = Page(text)
            assert page.open == [] and set(page.links) <= files.keys()
            linked |= set(page.links)
            assert not re.search("url\\(|@import|<script|https?:", text) and "prefers-color-scheme: dark" in text
    assert linked == files.keys()


def test_a_page_tells_verdict_versions_obligations_and_how_to_run(reports: list[Report], tmp_path: Path) -> None:
    files = site(reports)
    first, second = (Page(files[f"{report.stem}.html"]).texts for report in reports)
    assert first[4:6] == ["gwt-mine/device.mine 1.0", "certified"] and "Not met" not in first
    assert "guideway conform gwt-mine/device.mine" in " ".join(first) and "'gwt-mine==1.0'" in " ".join(first)
    assert any(f"numpy {reports[0].environment['numpy']}" in text for text in first)
    ids = [text for text in first if re.fullmatch(r"device\.\w+", text)]
    assert ids == [owed.check for owed in reports[0].owed], "those that were not part of the run too"
    where = second.index("Not met")
    assert second[5] == "failed" and where < second.index("How to run it")
    assert any(text.startswith('FAILED: it said <b> & "no"') for text in second[where:])
    assert "known failure: bug 17" in second[where:]
    write_site(reports, tmp_path / "new" / "site")
    assert Report.read(tmp_path / "new" / "site" / "gwt-mine.device.mine.json").sha256 == reports[0].sha256


def test_two_reports_about_one_plugin_are_refused(core_report: Report) -> None:
    with pytest.raises(InvalidConfiguration, match=r"two reports are about gwt-mine/device\.mine"):
        site([core_report, core_report])


def test_a_badge_says_what_the_json_says(reports: list[Report]) -> None:
    for report in reports:
        image, data = ElementTree.fromstring(svg(report)), json.loads(badge(report))
        texts = [element.text for element in image.iter() if element.tag.endswith("text")]
        assert texts == [data["label"], data["message"]]
        assert image.get("aria-label") == f"{data['label']}: {data['message']}"


MEASURE = "<script>document.body.textContent = `W${document.documentElement.scrollWidth}/${innerWidth}`</script></body>"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no browser here that can be asked without a screen")
@pytest.mark.parametrize("width", [500, 1280])
def test_no_page_is_wider_than_its_window(reports: list[Report], tmp_path: Path, width: int) -> None:
    """Tables that cannot be made narrower have their own scroll bars."""
    for name, text in site(reports).items():
        if name.endswith(".html"):
            page = tmp_path / name
            page.write_text(text.replace("</body>", MEASURE), encoding="utf-8")
            command = [str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom"]
            done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120)
            assert f"W{width}/{width}" in done.stdout, name
