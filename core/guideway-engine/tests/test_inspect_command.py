"""``guideway inspect``: a table in a terminal, JSON, a page; records; errors with advice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from guideway.command_line.program import main

from tests.support.stages import everyday
from tests.support.terminal import shown_at_terminal

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT = "Extract name, age. Meet Peter Young. Age: 49."
GUIDEWAY = [sys.executable, "-m", "guideway.command_line.program"]
INSPECT = ["inspect", "--model", "demo", "--strategy", "llguidance"]
ANSWER = '{"name":"Peter Young","age":49}'


@pytest.fixture
def records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return a file with two answers, to a schema and a regular expression, written by `guideway generate`."""
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    lines = [{"prompt": PROMPT, "id": "person", "schema": SCHEMA}, {"prompt": PROMPT, "id": "word", "regex": "a|bc"}]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    flags = ["--model", "demo", "--strategy", "llguidance", "--whitespace", "compact", "--record"]
    assert main(["generate", *flags, "--input", str(prompts)]) == 0
    answers.write_text(capsys.readouterr().out, encoding="utf-8")
    return answers


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    said: dict[str, Any] = json.loads(out)
    return status, said


@pytest.mark.parametrize("columns", everyday([80, 200], 80))
def test_a_terminal_gets_a_table_that_fits_it(columns: int) -> None:
    text = '{"name":"Zoë","age":4e}'
    status, shown = shown_at_terminal(
        [*GUIDEWAY, *INSPECT, "--schema", json.dumps(SCHEMA), "--text", text], columns=columns
    )
    assert status == 1
    assert "\x1b[" in shown
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= columns
    plain = " ".join(" ".join(lines).split())
    assert "llguidance chosen: enforces everything" in plain
    assert "Refused at byte 22 (line 1, column 22), at #/age of its JSON: 'e' may not stand here." in plain
    assert "jsonschema: not JSON" in plain
    assert re.search(r"\bZo\b +[\d,]+ many +\d\d\.\d %", plain)


def test_a_pipe_gets_the_table_without_colors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*INSPECT, "--regex", "[ab]c", "--text", "ac"]) == 0
    out, err = capsys.readouterr()
    assert (err, "\x1b" in out) == ("", False)
    assert out.startswith("Accepted: the text satisfies the constraint.\n")


def test_a_summary_counts_in_the_words_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*INSPECT, "--regex", "[ab]{2}", "--text", "ab"]) == 0
    *_, legend, _, summary = capsys.readouterr().out.splitlines()
    assert legend.startswith("[forced: one token; spelled: ")
    assert summary == "2 tokens, none forced or spelled"
    assert main([*INSPECT, "--regex", "(a|b)com", "--text", "acom"]) == 0
    out = capsys.readouterr().out
    assert "spelled  " in out
    assert out.endswith("2 tokens, 1 forced or spelled, in 1 run (the longest: 1)\n")


@pytest.mark.slow
def test_other_strategies_are_named_for_what_the_chosen_do_not_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answer.ebnf"
    path.write_text('root ::= "yes"', encoding="utf-8")
    for command in (["inspect", "--text", "yes"], ["generate", "--prompt", "x"]):
        given = [*command, "--model", "demo", "--grammar-file"]
        assert main([*given, f"ebnf={path}", "--strategy", "llguidance,lmfe"]) == 1
        err = capsys.readouterr().err
        assert "no configured strategy can serve this grammar:ebnf constraint" in err
        assert "ther strategies, installed, say that they take it: xgrammar; choose with --strategy" in err
        assert main([*given, f"nobodys={path}"]) == 1
        err = capsys.readouterr().err
        assert "no installed strategy can serve this grammar:nobodys constraint" in err
        assert "ther strategies" not in err


def test_only_the_tokenizer_is_loaded() -> None:
    script = (
        "import sys\nfrom guideway.command_line.program import main\n"
        f"assert main({[*INSPECT, '--schema', json.dumps(SCHEMA), '--text', ANSWER]!r}) == 0\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys(), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=120)


def test_a_record_needs_nothing_else(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = {line["id"]: line for line in map(json.loads, records.read_text(encoding="utf-8").splitlines())}
    status, said = as_json(capsys, "inspect", "--record", str(records), "--id", "person")
    assert (status, said["passes"], said["model"], said["strategy"]) == (0, True, "demo", "llguidance")
    assert said["token_ids"] == written["person"]["token_ids"]
    assert said["text"] == written["person"]["text"]
    assert json.loads(said["constraint"]["source"]) == SCHEMA
    assert {each["name"] for each in said["strategies"]} >= {"llguidance", "xgrammar", "outlines", "lmfe"}
    # the run's mode of white space is used: with others, a space might follow the colon
    spelled = [step["token"].get("text") for step in said["steps"][:-1] if step["choice"] == "spelled"]
    assert '":"' in spelled
    status, said = as_json(capsys, "inspect", "--record", str(records), "--id", "word")
    assert (status, said["constraint"]["kind"]) == (0, "regex")


@pytest.mark.slow
def test_the_pressure_is_drawn_along_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = tmp_path / "answer.jsonl", tmp_path / "page.html"
    flags = [
        "--model",
        "demo",
        "--strategy",
        "llguidance",
        "--record",
        "--records",
        "--temperature",
        "1",
        "--seed",
        "4",
    ]
    assert main(["generate", *flags, "--schema", json.dumps(SCHEMA), "--prompt", PROMPT]) == 0
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    line = json.loads(path.read_text(encoding="utf-8"))
    written = line["records"]["pressure"]
    assert len(written) == len(line["token_ids"])
    status, said = as_json(capsys, "inspect", "--record", str(path))
    assert (status, said["pressure"]) == (0, written)
    counts = [step["allowed"]["count"] for step in said["steps"]][: len(written)]
    assert counts == line["records"]["allowed"][: len(counts)]  # the same masks as when it was drawn
    assert main(["inspect", "--record", str(path)]) == 0
    bars = re.findall(r"([█▏▎▍▌▋▊▉]*) +[<>]?([\d.]+) % +\S+ .s", capsys.readouterr().out)
    assert [bar.count("█") for bar, _ in bars] == [round(value * 64) // 8 for value in written]
    assert [float(percent) for _, percent in bars] == pytest.approx([100 * value for value in written], abs=0.11)
    assert main(["inspect", "--record", str(path), "--html", str(page)]) == 0
    assert re.findall(r"--left:([\d.]+)", page.read_text(encoding="utf-8")) == [f"{value:.4f}" for value in written]


@pytest.mark.slow
def test_flags_win_over_a_record(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["inspect", "--record", str(records), "--id", "word", "--strategy", "llguidance"]
    status, said = as_json(capsys, *command, "--regex", "z+")
    assert (status, said["constraint"]["source"]) == (1, "z+")


@pytest.mark.slow
def test_a_record_wins_over_the_environment_and_flags_over_both(
    records: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUIDEWAY_MODEL", "no-such-model")
    monkeypatch.setenv("GUIDEWAY_WHITESPACE", "any")
    command = ["inspect", "--record", str(records), "--id", "person", "--strategy", "llguidance"]
    status, compact = as_json(capsys, *command)
    assert (status, compact["model"]) == (0, "demo")
    assert compact["num_forced"] > 1
    status, loose = as_json(capsys, *command, "--whitespace", "any")
    assert loose["num_forced"] < compact["num_forced"]
    assert main([*command, "--model", "another"]) == 1
    assert "It comes from --model." in capsys.readouterr().err


def test_what_was_refused_is_recorded_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "--model", "demo", "--strategy", "llguidance", "--prompt", "x", "--schema"]
    assert main([*command, '{"$ref": "http://a/b"}', "--record"]) == 1
    line = json.loads(capsys.readouterr().out)
    assert (line["finish_reason"], {"model", "constraint", "token_ids"} & line.keys()) == ("refused", set())


@pytest.mark.slow
def test_records_go_to_a_terminal_as_json_lines() -> None:
    command = ["generate", "--model", "demo", "--strategy", "llguidance", "--prompt", "x", "--regex", "ab", "--record"]
    status, shown = shown_at_terminal([*GUIDEWAY, *command])
    assert status == 0
    assert '"constraint"' in shown  # a table does not contain this


@pytest.mark.slow
@pytest.mark.parametrize("encoding", everyday(["ascii", "utf-8"], "ascii"))
def test_json_is_json_in_any_encoding(encoding: str) -> None:
    done = subprocess.run(
        [*GUIDEWAY, *INSPECT, "--regex", ".+", "--text", "Zo\u00eb \u202e", "--json"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        check=True,
    )
    assert json.loads(done.stdout.decode(encoding))["text"] == "Zo\u00eb \u202e"
    assert "\u202e" not in done.stdout.decode(encoding)


def test_reasoning_is_no_part_of_what_is_inspected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"text": "hm.ab", "finish_reason": "stop", "answer_start": 3, "num_reasoning_tokens": 1, "id": "0"}
    path = tmp_path / "record.jsonl"
    path.write_text(json.dumps(line), encoding="utf-8")
    status, said = as_json(capsys, *INSPECT, "--record", str(path), "--regex", "ab")
    assert (status, said["text"]) == (0, "ab")
    path.write_text(json.dumps(line | {"token_ids": [300, *said["token_ids"], 2]}), encoding="utf-8")
    status, again = as_json(capsys, *INSPECT, "--record", str(path), "--regex", "ab")
    assert (status, again["token_ids"]) == (0, [*said["token_ids"], 2])


def test_one_of_several_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate(("ab", "x"))]
    path = tmp_path / "record.jsonl"
    path.write_text(json.dumps({"id": "0", **outputs[0], "outputs": outputs}), encoding="utf-8")
    command = [*INSPECT, "--record", str(path), "--regex", "ab"]
    assert as_json(capsys, *command)[0] == 0
    status, said = as_json(capsys, *command, "--output-index", "1")
    assert (status, said["text"]) == (1, "x")
    assert main([*command, "--output-index", "2"]) == 1
    assert "has no output 2; choose one with --output-index: 0, 1" in capsys.readouterr().err


def test_the_page_goes_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    assert main([*INSPECT, "--schema", json.dumps(SCHEMA), "--text", ANSWER, "--html", str(path)]) == 0
    assert capsys.readouterr().out == f"the page is in {path}\n"
    assert "Accepted: the text satisfies the constraint." in path.read_text(encoding="utf-8")
    assert main([*INSPECT, "--regex", "a", "--html", str(tmp_path)]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_a_text_from_a_file_ends_before_its_last_line_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answer.txt"
    path.write_bytes(b"ab\r\n")
    assert as_json(capsys, *INSPECT, "--regex", "ab", "--text-file", str(path))[1]["text"] == "ab"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 2, "there is no constraint to inspect; add --schema, --regex, --choice or --grammar-file"),
        (["--regex", "a", "--id", "3"], 2, "need --record; add it"),
        (["--regex", "a", "--token-ids", "1,x"], 2, "must be token ids separated by commas"),
        (["--regex", "a", "--token-ids", "1,1536"], 1, "token id 1536 is not in the vocabulary (ids 0 to 1535)"),
        (["--regex", "a", "--text", "\udc80"], 1, "the text contains a lone surrogate"),
        (["--regex", "a", "--record", "{}"], 1, "is not a record"),
        (["--regex", "a", "--text", "a", "--token-ids", "1"], 2, "not allowed with argument"),
        (["--regex", "a", "--max-num-seqs", "3"], 2, "unrecognized arguments: --max-num-seqs 3"),
        (["--regex", "a", "--text-file", "/no/such"], 1, "cannot read the text_file '/no/such'"),
        (["--schema", '{"type": "strnig"}'], 2, "guideway: --schema: #/type: `type` must be one of"),
        (
            ["--regex", "*a"],
            2,
            "guideway: --regex is no regular expression: a `*` with nothing to repeat\n    *a\n    ^",
        ),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str], status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text("{}", encoding="utf-8")
    given = [str(path) if argument == "{}" else argument for argument in arguments]
    assert main([*INSPECT, *given]) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "flags", "said"),
    [
        ([{"id": "a", "text": "x", "finish_reason": "stop"}], [], "line 1 does not contain its constraint"),
        ([{"id": "a", "text": "x", "finish_reason": "stop"}], ["--id", "b"], "no record has the id 'b'"),
        ([{"id": i, "text": "x", "finish_reason": "stop"} for i in "aab"], [], "3 records; choose one with --id"),
        ([{"id": i, "text": "x", "finish_reason": "stop"} for i in "aab"], ["--id", "a"], "2 records have the id 'a'"),
        (
            [{"text": "", "finish_reason": "refused", "error": {"message": "no wonder"}}],
            ["--regex", "a"],
            "has no answer, because it was refused: no wonder",
        ),
        (
            [{"text": "a", "finish_reason": "stop", "strategy": "klingon"}],
            ["--regex", "a"],
            "install it, or select it with --strategy klingon",
        ),
        (
            [{"text": "a", "finish_reason": "stop", "constraint": {"regex": "a", "choice": ["a"]}}],
            [],
            "must be an object with one of schema, regex, choice, grammar",
        ),
        (
            [{"text": "a", "finish_reason": "stop", "token_ids": 3}],
            ["--regex", "a"],
            "is not a line of guideway generate",
        ),
        (
            [{"text": "a", "finish_reason": "stop", "token_ids": [3], "records": {"pressure": [1, 1]}}],
            ["--regex", "a"],
            "the pressure of 2 tokens, and 1 token ids",
        ),
        (
            [{"text": "a", "finish_reason": "stop", "records": 3}],
            ["--regex", "a"],
            "is not a line of guideway generate",
        ),
        ([], ["--regex", "a"], "holds no record"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(
    lines: list[dict[str, Any]], flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert main([*INSPECT, "--record", str(path), *flags]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_what_native_libraries_say_reaches_no_terminal() -> None:
    # xgrammar's message for this is "[time] /project/cpp/...: Warning: Lookahead assertion is not supported"
    schema = json.dumps({"type": "string", "pattern": "^(?=a)ab$"})
    command = [*GUIDEWAY, "inspect", "--model", "demo", "--schema", schema, "--strategy", "xgrammar", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["strategies"][0]["name"] == "xgrammar"


@pytest.mark.slow
def test_an_interrupt_ends_it_at_once_also_inside_a_library(tmp_path: Path) -> None:
    fifo = tmp_path / "text"
    os.mkfifo(fifo)  # the command blocks here, so the interrupt is sure to hit it
    with subprocess.Popen(
        [*GUIDEWAY, *INSPECT, "--regex", "a", "--text-file", str(fifo)], stderr=subprocess.PIPE
    ) as process:
        fd = os.open(fifo, os.O_WRONLY)  # blocks until the other side opens the file
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == -signal.SIGINT
        os.close(fd)


def test_interrupts_are_handled_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert main([*INSPECT, "--regex", "a"]) == 0
    assert signal.getsignal(signal.SIGINT) is before
