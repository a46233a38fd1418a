"""The tables of the page on serving agree with the limits of the server."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from guideway_engine.server import bodies, errors, framing, json_reading
from guideway_engine.server.app import make_app
from guideway_engine.server.limits import Limits

from tests.repository.sources import ROOT

PAGE = (ROOT / "docs/serving.md").read_text("utf-8")


@pytest.mark.parametrize("limit", fields(Limits), ids=lambda limit: limit.name)
def test_each_limit_is_there_with_its_default(limit: object) -> None:
    flag = f"--{limit.name.replace('_', '-')}"  # type: ignore[attr-defined]
    row = re.search(rf"^\| `{flag}` \| (\d+)", PAGE, re.MULTILINE)
    assert row is not None, flag
    assert int(row[1]) == limit.default  # type: ignore[attr-defined]


def test_the_fixed_limits() -> None:
    table = PAGE.partition("These limits are fixed:")[2].partition("\n\nAlso")[0]
    numbers = {int(number) for row in table.splitlines()[4:] for number in re.findall(r"\d+", row.split("|")[2])}
    assert numbers == {
        bodies.MAX_INPUTS,
        json_reading.MAX_VALUES,
        json_reading.MAX_CONTAINERS,
        json_reading.MAX_DEPTH,
        json_reading.MAX_NAMES,
        framing.MAX_HEAD_BYTES,
        framing.MAX_HEADERS,
        framing.MAX_SMALL_CHUNKS,
    }


def test_each_error_of_the_server_is_there_with_its_status() -> None:
    rows = PAGE.partition("## Errors")[2].partition("## Access")[0].splitlines()
    for cls, status in errors.STATUS:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        assert any(row.startswith(f"| {int(status)} |") and f"`{name}`" in row for row in rows), name


def test_each_path_is_there() -> None:
    app = make_app(None, "m", Limits())  # type: ignore[arg-type]
    for route in app.routes:
        path = getattr(route, "path", "").replace("{name:path}", "NAME")
        assert path in PAGE, path
