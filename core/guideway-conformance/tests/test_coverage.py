"""``guideway coverage``: reading corpora, ordering instances, verdicts, processes, resuming."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from guideway.command_line.program import main
from guideway.json_schema.prober import byte_vocabulary
from guideway.plugins import Plugins
from guideway_conformance.coverage import processes
from guideway_conformance.coverage.corpora import Case, read_cases
from guideway_conformance.coverage.judging import judge, plain
from guideway_conformance.coverage.ordering import in_declared_order
from hypothesis import given
from hypothesis import strategies as st

from tests.support.processes import children, is_alive, until

NAMES = ("b", "c", "a")
SCHEMA: dict[str, Any] = {"type": "object", "properties": {name: {"type": "integer"} for name in NAMES}}
WHOLE = {**SCHEMA, "required": list(NAMES), "additionalProperties": False}
STRATEGY = """\
import os, signal, time
from guideway_conformance.reference.strategy import Strategy as Reference

class Strategy(Reference):
    name = "wild"

    def compile(self, constraint):
        match constraint.parsed.get("title"):
            case "hangs":
                while True: pass
            case "grows":
                kept = []
                while True: kept.append(b"x" * (1 << 26))
            case "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "raises":
                raise ValueError("a bug")
            case "silent":
                return super().compile(type(constraint)({"type": "integer"}))
            case "valid rejected":
                return super().compile(type(constraint)({"const": 1}))
            case "waits":
                open("waiting", "w").close()
                while os.path.exists("waiting"): time.sleep(0.01)
        return super().compile(constraint)
"""


def write(path: Path, *rows: Mapping[str, Any]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return str(path)


def row(name: str, schema: Any, valid: list[Any], invalid: list[Any]) -> dict[str, Any]:
    return {"name": name, "schema": schema, "valid": valid, "invalid": invalid}


def kinds(folder: Path) -> dict[str, str]:
    _, *lines = (folder / "results.jsonl").read_text("utf-8").splitlines()
    return {verdict["name"]: verdict["kind"] for verdict in map(json.loads, lines)}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_kind_of_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MEMORY", 1 << 30)
    given = [{"a": 1, "b": 2, "c": 3}]
    titles = {
        "right with a whole number": "right",
        "hangs": "time out",
        "grows": "memory out",
        "crashes": "failed",
        "raises": "failed",
        "silent": "silent",
    }
    Path("wild.py").write_text(STRATEGY)
    corpus = write(
        tmp_path / "corpus.jsonl",
        row("right", WHOLE, [{"b": 1, "c": 2, "a": 3}], [{"b": 1}, [1]]),
        row("right with a whole number", {"type": "integer"}, [2.0], ["a"]),
        row("other order", WHOLE, given, []),
        row("valid rejected", {"title": "valid rejected", "type": "integer"}, [1, 2], ["a"]),
        row("refused", {"type": 7}, [], []),
        *(row(title, {"title": title, "type": "string"}, [], [7]) for title in titles if " " not in title),
    )
    status = main(["coverage", corpus, "--strategy", "./wild.py:Strategy", "--output", "out", "--seconds", "5"])
    found = kinds(Path("out"))
    assert found == {name: titles.get(name, name) for name in found}
    assert len(found) == 10
    assert status == 1
    totals = json.loads(Path("out/totals.json").read_text("utf-8"))["totals"][0]
    assert totals["kinds"]["failed"] == 2
    assert totals["names"]["failed"] == ["crashes", "raises"]
    page = Path("out/index.html").read_text("utf-8")
    assert "ValueError: a bug" in page
    assert "wild.py" in capsys.readouterr().out


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run over two schemas that waits at the second one."""
    Path("wild.py").write_text(STRATEGY)
    write(
        tmp_path / "corpus.jsonl",
        row("first", {"type": "integer"}, [1], ["a"]),
        row("second", {"title": "waits", "type": "integer"}, [1], ["a"]),
    )
    command = [sys.executable, "-c", "import sys; from guideway.command_line.program import main; sys.exit(main())"]
    with subprocess.Popen([*command, *COMMAND], stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        until(lambda: Path("waiting").exists())
        yield process


COMMAND = ["coverage", "corpus.jsonl", "--strategy", "./wild.py:Strategy", "--output", "out", "--jobs", "1"]


def test_an_interrupted_run_leaves_no_process_and_continues(waiting: subprocess.Popen[str]) -> None:
    (child,) = children(waiting.pid)
    waiting.send_signal(signal.SIGTERM)
    assert "interrupted" in waiting.communicate(timeout=60)[1]
    assert waiting.returncode == 143
    until(lambda: not is_alive(child))
    Path("waiting").unlink()
    assert kinds(Path("out")) == {"first": "right"}
    with Path("out/results.jsonl").open("a") as file:
        file.write('{"chain": "cut')
    before = Path("out/results.jsonl").stat().st_mtime_ns
    Path("wild.py").write_text(STRATEGY.replace("while os.path.exists", "while False and os.path.exists"))
    assert main(COMMAND) == 0
    assert kinds(Path("out")) == {"first": "right", "second": "right"}
    assert Path("out/results.jsonl").stat().st_mtime_ns > before
    lines = Path("out/results.jsonl").read_text("utf-8")
    assert main(COMMAND) == 0
    assert Path("out/results.jsonl").read_text("utf-8") == lines, "everything was known"


def test_another_run_does_not_continue_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = row("first", {"type": "integer"}, [1], ["a"])
    command = ["coverage", write(tmp_path / "corpus.jsonl", given), "--strategy", "reference", "--output", "out"]
    assert main(command) == 0
    assert main([*command, "--seconds", "9"]) == 2
    assert "has the verdicts of another run" in capsys.readouterr().err
    write(tmp_path / "corpus.jsonl", {**given, "valid": [1, 2]})
    assert main(command) == 2


@given(st.permutations(NAMES), st.permutations(("x", "y", *NAMES)))
def test_an_instance_in_declared_order_is_equal_and_in_order(declared: list[str], written: list[str]) -> None:
    node = {"properties": {name: {"$ref": "#/$defs/node"} for name in declared}}
    whole = {"$defs": {"node": node}, "allOf": [{"properties": {"x": True}}, {"items": {"$ref": "#/$defs/node"}}, node]}
    inner = dict.fromkeys(written, 1)
    value = {name: [inner] if name == "y" else inner for name in written}
    found = in_declared_order(whole)(value)
    assert found == value
    assert list(found) == ["x", *declared, "y"]
    assert [name for name in found["a"] if name in declared] == declared
    listed = in_declared_order(whole)([inner])
    assert [name for name in listed[0] if name in declared] == declared


def test_folders_of_the_official_suite_and_of_single_schemas_are_read(tmp_path: Path) -> None:
    tests = [{"description": "d", "data": 1, "valid": True}, {"description": "e", "data": "a", "valid": False}]
    folder = tmp_path / "tests" / "draft7"
    folder.mkdir(parents=True)
    group = {"description": "an integer", "schema": {"type": "integer"}, "tests": tests}
    (folder / "type.json").write_text(json.dumps([group, group]))
    (tmp_path / "tests" / "one.json").write_text(json.dumps({"schema": {"type": "integer"}, "tests": tests}))
    cases = read_cases(tmp_path / "tests")
    assert [case.name for case in cases] == ["draft7/type::an integer", "draft7/type::an integer #2", "one"]
    assert {(case.valid, case.invalid) for case in cases} == {((1,), ("a",))}
    assert [case.schema.get("$schema", "")[-10:] for case in cases] == ["07/schema#", "07/schema#", ""]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "corpus.jsonl, line 1: not JSON"),
        ('{"name": "a", "schema": true}', "corpus.jsonl, line 1: 'valid', 'invalid' missing"),
        ("[]", "'name', 'schema', 'valid', 'invalid' missing"),
    ],
)
def test_what_is_no_corpus_is_refused(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus.jsonl").write_text(text)
    assert main(["coverage", str(tmp_path / "corpus.jsonl"), "--strategy", "reference"]) == 2
    assert problem in capsys.readouterr().err
    assert main(["coverage", "absent.jsonl", "--strategy", "reference"]) == 2
    assert "'absent.jsonl' cannot be read" in capsys.readouterr().err


@given(
    value=st.recursive(
        st.floats(allow_nan=False, allow_infinity=False)
        | st.integers()
        | st.text()
        | st.sampled_from(["1e-06", '"1e-06', "2.0"]),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
        max_leaves=4,
    )
)
def test_a_plain_text_has_the_same_value_and_no_exponents(value: Any) -> None:
    text = plain(value)
    assert _exact(text) == _exact(json.dumps(value))
    without_strings = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    assert not re.search(r"e|\.0*(?![0-9])", without_strings)


def _exact(text: str) -> Any:
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


def test_a_number_passes_without_an_exponent() -> None:
    """llguidance takes none where there is a bound."""
    case = Case("number", "any", {"type": "number", "minimum": 0}, (1e-06,), (-1e-06,))
    strategies = {"llguidance": Plugins().load("grammar", "llguidance")(byte_vocabulary(), {})}
    assert judge("llguidance", case, strategies, "declared").kind == "right"
