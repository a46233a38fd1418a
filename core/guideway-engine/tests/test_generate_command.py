"""``guideway generate``: JSON lines in a pipe, a table in a terminal, exit statuses, errors with advice."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from textwrap import wrap
from typing import Any

import jsonschema
import pytest
from guideway.api import hookimpl
from guideway.command_line.program import main
from guideway_engine.command_line import config, jobs
from guideway_engine.command_line.lines import Lines

from tests.support.distributions import install
from tests.support.stages import everyday
from tests.support.terminal import at_terminal, shown_at_terminal

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "maximum": 130}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
GENERATE = [sys.executable, "-m", "guideway.command_line.program", "generate", "--model", "demo"]
PROMPT = "Extract name, age. Meet Peter Young. Age: 49."


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "person.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    status = main(["generate", *arguments])
    out, err = capsys.readouterr()
    return status, [json.loads(line) for line in out.splitlines()], err


def test_one_prompt_gives_one_json_line_in_a_pipe(schema: str) -> None:
    command = [*GENERATE, "--schema", schema, "--prompt", PROMPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert json.loads(result["text"]) == {"name": "Peter Young", "age": 49}
    assert (result["finish_reason"], result["strategy"], result["error"]) == ("stop", "llguidance", None)


@pytest.mark.slow
def test_a_terminal_gets_a_table(schema: str, tmp_path: Path) -> None:
    lines = tmp_path / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"prompt": PROMPT, "max_tokens": n}) + "\n" for n in (60, 0)), encoding="utf-8")
    status, text = shown_at_terminal([*GENERATE, "--schema", schema, "--input", str(lines)], columns=120)
    assert status == 1
    for expected in ("prompt", "answer", '{"name":"Peter Young"', "llguidance", "refused", "max_tokens must be"):
        assert expected in text
    assert '"finish_reason"' not in text


def test_lines_of_input_keep_their_order_and_their_own_parameters(
    schema: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [
        {"prompt": PROMPT, "id": "a"},
        {"prompt": PROMPT, "id": 7, "regex": "yes|no"},
        {"prompt": PROMPT, "schema": {"type": "strnig"}},
        {"prompt": [{"role": "user", "content": PROMPT}], "max_tokens": 2, "close": False},
        {"prompt": PROMPT, "schema": {"enum": ["x", "y"]}, "temperature": 0.5, "seed": 1},
        {"prompt": PROMPT, "choice": ["one, two", "three"], "stop": None, "logit_bias": None, "modifiers": None},
        {"prompt": PROMPT, "grammar": {"dialect": "ebnf", "text": 'root ::= "a" [0-9] "z"'}},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n".join(json.dumps(entry) for entry in entries), encoding="utf-8")
    status, lines, err = run(
        capsys, "--model", "demo", "--schema", schema, "--input", str(path), "--strategy", "xgrammar"
    )
    assert status == 1
    assert [line["index"] for line in lines] == [0, 1, 2, 3, 4, 5, 6]
    assert [line["id"] for line in lines[:2]] == ["a", "7"]
    jsonschema.validate(json.loads(lines[0]["text"]), SCHEMA)
    assert lines[0]["strategy"] == "xgrammar"
    assert lines[1]["text"] in ("yes", "no")
    assert lines[2]["finish_reason"] == "refused"
    assert lines[2]["error"]["type"] == "InvalidGrammar"
    assert lines[2]["error"]["field"] == "constraint.schema"
    assert (lines[3]["finish_reason"], lines[3]["num_tokens"]) == ("length", 2)
    assert json.loads(lines[4]["text"]) in ("x", "y")
    assert lines[5]["text"] in ("one, two", "three")
    assert re.fullmatch("a[0-9]z", lines[6]["text"])
    assert "prompt 2 in line 5 was refused" in err
    assert "cut after 2 tokens" in err


def test_standard_input_is_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    given = json.dumps({"prompt": PROMPT, "regex": "[0-9]{2}"}).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    status, lines, _ = run(capsys, "--model", "demo", "--input", "-")
    assert (status, len(lines[0]["text"])) == (0, 2)


def test_a_line_ends_at_a_line_feed_and_nowhere_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [{"prompt": f"one{end}two", "id": f"a{end}b", "max_tokens": 1} for end in ("\u2028", "\u2029", "\x85")]
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    path.write_text("\ufeff" + "\r\n".join(lines) + "\r\n", encoding="utf-8", newline="")
    assert main(["generate", "--model", "demo", "--input", str(path)]) == 0
    out = capsys.readouterr().out
    assert [json.loads(line)["id"] for line in out.rstrip("\n").split("\n")] == [entry["id"] for entry in entries]


@pytest.mark.parametrize("encoding", everyday(["ascii", "utf-8"]))
def test_json_lines_are_json_in_any_encoding(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "x", "id": "Zoë", "regex": "ë|日本"}), encoding="utf-8")
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([*GENERATE, "--input", str(path)], capture_output=True, env=environment, check=False)
    assert done.returncode == 0
    assert done.stderr.startswith(b"guideway: 1 prompt: 1 answered; ") and done.stderr.count(b"\n") == 1
    line = json.loads(done.stdout.decode(encoding))
    assert line["id"] == "Zoë"
    assert line["text"] in ("ë", "日本")
    assert (b"\\u" in done.stdout) == (encoding == "ascii")


@pytest.mark.slow
def test_a_terminal_is_shown_what_it_can_show(tmp_path: Path) -> None:
    prompt = b"Zo\xc3\xab \xff"  # the last byte is not valid text
    status, shown = shown_at_terminal(
        [*GENERATE, "--prompt", prompt, "--regex", "ë"], columns=120, environment={"PYTHONIOENCODING": "ascii"}
    )
    assert status == 1
    assert "Traceback" not in shown
    assert "Zo\\xeb \\udcff" in shown
    assert "contains a lone surrogate" in shown


COLORS = re.compile(r"\x1b\[\d+m")


def answers(output: str, lines: Path, *, interrupt: bool = False) -> tuple[int, str, str]:
    """Run ``generate --json --input lines`` with standard error on a terminal, and return its exit status, the content
    of its standard output (a file, a pipe, or that terminal), and the output on the terminal. With `interrupt`, for a
    pipe, send SIGINT as soon as there is output."""
    if output == "file":
        writing = os.open(lines.with_suffix(".answers"), os.O_WRONLY | os.O_CREAT)
        reading = os.open(lines.with_suffix(".answers"), os.O_RDONLY)
    else:
        reading, writing = os.pipe()
    command = [*GENERATE, "--json", "--input", str(lines)]
    with (
        ThreadPoolExecutor(1) as pool,
        at_terminal(command, stdout=None if output == "terminal" else writing) as terminal,
    ):
        os.close(writing)
        shown = pool.submit(terminal.read_all)
        arrived = b""
        if interrupt:
            arrived = os.read(reading, 65536)
            terminal.process.send_signal(signal.SIGINT)
        terminal.process.wait()
        while more := os.read(reading, 65536):
            arrived += more
        told = shown.result().decode()
    os.close(reading)
    return terminal.process.returncode, arrived.decode(), told


@pytest.mark.slow
@pytest.mark.parametrize("output", everyday(["file", "terminal"], "file"))
def test_a_terminal_for_standard_error_leaves_the_answers_alone(output: str, tmp_path: Path) -> None:
    lines = tmp_path / "prompts.jsonl"
    identifiers = ["a" * 200, "[bold]", "b"]  # wider than the terminal, and text that looks like markup
    lines.write_text(
        "".join(json.dumps({"prompt": PROMPT, "id": i, "regex": "x{9}"}) + "\n" for i in identifiers), encoding="utf-8"
    )
    status, arrived, terminal = answers(output, lines)
    if output == "terminal":
        shown = COLORS.sub("", terminal).replace("\r\n", "\n")
        assert shown.count('\n  "text": "xxxxxxxxx",\n') == len(identifiers)
        arrived = shown[shown.index("{\n") : shown.rindex("}\n") + 2].replace("\n}\n", "}\x00").replace("\n", "")
        arrived = arrived.replace("\x00", "\n")
    assert status == 0
    assert [(line["id"], line["text"]) for line in map(json.loads, arrived.splitlines())] == [
        (identifier, "xxxxxxxxx") for identifier in identifiers
    ]
    assert "loading the model" in terminal
    assert ("generating" in terminal) == (output != "terminal")
    # transformers' bars, tqdm's bars, and the empty line that the spinner turns them into
    for bar in ("Loading weights", "%|", "it/s", "\r\x1b[2K\r\n"):
        assert bar not in terminal


@pytest.mark.slow
@pytest.mark.parametrize("output", ["--json | cat", "-o -"])
def test_answers_share_no_line_of_a_terminal_with_a_bar(output: str, tmp_path: Path) -> None:
    lines = tmp_path / "prompts.jsonl"
    lines.write_text((json.dumps({"prompt": PROMPT, "regex": "x{9}"}) + "\n") * 9, encoding="utf-8")
    command = " ".join(map(shlex.quote, [*GENERATE, "--input", str(lines)]))
    status, shown = shown_at_terminal(["sh", "-c", f"{command} {output}"])
    assert (status, shown.count('"text"')) == (0, 9)
    assert "loading the model" in shown and "generating" not in shown


def test_answers_may_be_seen_at_a_terminal_and_through_a_pipe(tmp_path: Path) -> None:
    pair, pipe, null = os.openpty(), os.pipe(), os.open(os.devnull, os.O_WRONLY)
    for path, seen in ((pair[1], True), (pipe[1], True), (null, False)):
        with Lines(f"/dev/fd/{path}") as lines:
            assert lines.may_be_seen is seen
    with Lines(str(tmp_path / "answers.jsonl")) as lines:
        assert not lines.may_be_seen
    for number in (*pair, *pipe, null):
        os.close(number)


@pytest.mark.slow
def test_an_interrupt_half_way_keeps_the_answers_there_are(tmp_path: Path) -> None:
    lines = tmp_path / "prompts.jsonl"
    lengths = [1, 300, 300]
    lines.write_text(
        "".join(
            json.dumps({"prompt": PROMPT, "regex": f"[a-z]{{{n}}}", "max_tokens": n, "close": False}) + "\n"
            for n in lengths
        ),
        encoding="utf-8",
    )
    status, arrived, terminal = answers("pipe", lines, interrupt=True)
    assert status == 130
    assert arrived.endswith("\n")
    assert [json.loads(line)["num_tokens"] for line in arrived.splitlines()] == [1]
    told = r"guideway: interrupted: 1 of 3 done: 0 answered; 1 cut; 1 token in [\d.]+ s, \d+ tokens/s\r\n$"
    assert re.search(told, terminal)
    assert terminal.rindex("\x1b[?25h") > terminal.rindex("\x1b[?25l")  # the cursor is visible again


@pytest.mark.slow
def test_what_is_not_enforced_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"type": "string", "pattern": "^[a-c]+$", "maxLength": 9}), encoding="utf-8")
    arguments = ("--model", "demo", "--schema", str(path), "--prompt", PROMPT, "--strategy", "xgrammar")
    _, lines, err = run(capsys, *arguments)
    assert lines[0]["unenforced"] == ["pattern+maxLength"]
    assert "xgrammar does not enforce `pattern+maxLength`" in err
    _, lines, err = run(capsys, *arguments, "--strategy", "llguidance")
    assert (lines[0]["strategy"], lines[0]["unenforced"]) == ("llguidance", [])


ONE = {"type": "integer", "minimum": 1, "maximum": 1}
TWICE = {"type": "array", "items": ONE, "minItems": 2, "maxItems": 2, "uniqueItems": True}
"""xgrammar does not enforce ``uniqueItems``, so the only answer is invalid."""


def test_strict_refuses_what_cannot_be_enforced(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--model", "demo", "--schema", json.dumps(TWICE), "--prompt", PROMPT, "--strategy", "xgrammar")
    status, lines, err = run(capsys, *arguments, "--strict", "--on-unenforced", "check")
    assert (status, lines) == (2, [])
    assert "not allowed with argument" in err
    for flags in (["--strict"], ["--on-unenforced", "refuse"]):
        status, lines, err = run(capsys, *arguments, *flags)
        assert (status, lines[0]["finish_reason"], lines[0]["error"]["field"]) == (1, "refused", "constraint")
        assert "xgrammar does not enforce `uniqueItems`" in err


def test_answers_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "prompts.jsonl"
    lines_in = [{"prompt": PROMPT}, {"prompt": PROMPT, "schema": {"const": 1}}]
    lines_in += [{"prompt": PROMPT, "on_unenforced": policy} for policy in ("report", "refuse")]
    given.write_text("".join(json.dumps(line) + "\n" for line in lines_in), encoding="utf-8")
    arguments = ("--model", "demo", "--schema", json.dumps(TWICE), "--input", str(given), "--strategy", "xgrammar")
    status, lines, err = run(capsys, *arguments, "--on-unenforced", "check", "--whitespace", "compact")
    assert status == 1
    assert [line["valid"] for line in lines] == [False, True, None, None]
    assert [line["finish_reason"] for line in lines] == ["stop", "stop", "stop", "refused"]
    assert err.count("was checked and does not satisfy the constraint") == 1
    assert "the answer to prompt 0 in line 1 was checked" in err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--model", "dmo", "--prompt", "x"], 1, "did you mean 'demo'"),
        (["--model", "demo", "--prompt", "x", "--strategy", "xgramar"], 1, "did you mean 'xgrammar'"),
        (["--model", "demo", "--prompt", "x", "--schema", "absent.json"], 1, "cannot read the schema 'absent.json'"),
        (["--model", "demo", "--input", "absent.jsonl"], 1, "cannot read the input 'absent.jsonl'"),
        (["--model", "demo", "--prompt", "x", "--max-tokens", "0"], 2, "--max-tokens must be"),
        (
            ["--model", "demo", "--prompt", "x", "--max-tokens", "many"],
            2,
            "must be a whole number, or None, not 'many'",
        ),
        (["--model", "demo"], 2, "one of the arguments --prompt --input is required"),
        (["--model", "demo", "--prompt", "x", "--input", "y"], 2, "not allowed with argument"),
        (["--model", "demo", "--prompt", "x", "--schema", "a", "--regex", "b"], 2, "not allowed with argument"),
        (["--prompt", "x"], 2, "no model is configured; give --model, GUIDEWAY_MODEL, or model in a"),
        (
            ["--model", "demo", "--prompt", "x", "--strategy", 'root ::= "a"'],
            1,
            "names strategies; what to obey is given with --schema, --regex, --choice or --grammar-file",
        ),
        (["--model", "demo", "--prompt", "x", "--modifier", "nope"], 1, "It comes from --modifier."),
        (["--model", "demo", "--prompt", "x", "--device", "gpu"], 1, "the device 'gpu'; write 'cuda', as torch names"),
        (["--model", "demo", "--prompt", "x", "--schema", '{"type": '], 2, "--schema: JSON schema is not JSON"),
        (
            ["--model", "demo", "--prompt", "x", "--plugins-require", "certified", "--plugins-lock", "absent.lock"],
            1,
            "guideway-demo-model/model.demo --record --lock absent.lock",
        ),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *arguments]) == status
    out, err = capsys.readouterr()
    assert said in err
    assert "Traceback" not in out + err


BAD_LINES = [
    ("{", "line {} is not JSON"),
    ('{"prompt": "x", "prompt": "y"}', "line {} is not JSON: the key 'prompt' appears twice"),
    ('"text"', "line {} must be an object with 'prompt'"),
    ('{"text": "x"}', "line {} has no 'prompt' (text, or a list of chat messages), but the unknown key 'text'"),
    ('{"prompt": "x", "schemas": {}}', "line {} has the unknown key 'schemas'"),
    ('{"prompt": "x", "schema": {}, "regex": "a"}', "both 'schema' and 'regex'"),
    ('{"prompt": "x", "choice": [], "grammar": {}}', "both 'choice' and 'grammar'"),
    ('{"prompt": "x", "choice": "yes"}', "choices must be a list of at least one string"),
    ('{"prompt": "x", "grammar": "start: /a/"}', "line {} must hold the grammar as an object with 'dialect', such"),
    ('{"prompt": "x", "grammar": {"text": "start: /a/"}}', "line {} must hold the grammar as an object"),
    ('{"prompt": "x", "grammar": {"text": "a", "dialect": "lrak"}}', "grammar:lrak"),
    ("[" * 100_000, "line {} is nested too deeply"),
    ('{"prompt": "x", "max_tokens": 1' + "0" * 5000 + "}", "line {} is not JSON"),
    (r'{"prompt": "x", "id": "\ud800"}', "line {} contains a lone surrogate"),
    (r'{"prompt": "\ud800"}', "line {} contains a lone surrogate"),
    (r'{"prompt": "x", "schema": {"enum": ["\ud800"]}}', "line {} contains a lone surrogate"),
]


def test_bad_lines_of_input_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(['{"prompt": "fine"}', *(line for line, _ in BAD_LINES)]), encoding="utf-8")
    assert main(["generate", "--model", "demo", "--input", str(path)]) == 1
    err = capsys.readouterr().err
    for number, (_, said) in enumerate(BAD_LINES, 2):
        assert any(f"line {number}" in line and said.format(number) in line for line in err.splitlines())


@pytest.mark.slow
def test_a_schema_may_stand_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, (line,), _ = run(capsys, "--model", "demo", "--prompt", PROMPT, "--schema", ' {"enum": ["yes"]}')
    assert (status, line["text"]) == (0, '"yes"')


def test_a_modifier_that_prompts_ask_for_comes_from_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "x", "modifiers": {"nope": {}}}\n{"prompt": "x", "regex": "a"}', encoding="utf-8")
    assert main(["generate", "--model", "demo", "--input", str(path)]) == 1
    told = capsys.readouterr()
    assert "prompt 0 was refused: line 1: no modifier named 'nope' is installed" in told.err
    assert json.loads(told.out.splitlines()[1])["text"] == "a"


def test_no_flag_takes_more_than_two_lines_of_help() -> None:
    parser = ArgumentParser()
    jobs.add_flags(parser)
    config.add_flags(parser)
    helps = {action.dest: str(action.help) for action in parser._actions}
    assert [name for name, text in helps.items() if len(wrap(text.replace("%%", "%"), 54)) > 2] == []


def test_a_broken_schema_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "schema.json"
    path.write_text("{oops", encoding="utf-8")
    assert main(["generate", "--model", "demo", "--schema", str(path), "--prompt", "x"]) == 1
    assert f"{path}: JSON schema is not JSON" in capsys.readouterr().err


@pytest.mark.slow
def test_a_bad_line_costs_no_other_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    good = json.dumps({"prompt": PROMPT, "regex": "[0-9]{2}"})
    path.write_text(f"{good}\n{{oops\n{good}\n" + '{"prompt": "x", "schema": "person.json"}', encoding="utf-8")
    status, lines, err = run(capsys, "--model", "demo", "--input", str(path))
    assert status == 1
    assert [line["finish_reason"] for line in lines] == ["stop", "refused", "stop", "refused"]
    assert lines[0]["text"] == lines[2]["text"]
    assert "line 2 is not JSON" in lines[1]["error"]["message"]
    assert "the schema itself" in lines[3]["error"]["message"]
    assert "line 2 is not JSON" in err


def test_a_cut_answer_under_a_constraint_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--model", "demo", "--prompt", PROMPT, "--max-tokens", "2")
    assert run(capsys, *arguments, "--regex", "[0-9]{40}")[0] == 1
    assert run(capsys, *arguments)[0] == 0
    status, (line,), err = run(capsys, "--model", "demo", "--prompt", PROMPT, "--regex", "a(ba)+", "--stop", "ba")
    assert (status, line["text"], line["finish_reason"], line["unenforced"]) == (1, "a", "stop", ["constraint"])
    assert "was cut by the stop string 'ba'" in err


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("./absent", "there is no such folder"),
        ("some-org/some-model", "guideway downloads nothing"),
        ("dmo", "did you mean 'demo'"),
    ],
)
def test_a_missing_model_is_explained(model: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", model, "--prompt", "x"]) == 1
    assert said in capsys.readouterr().err


class Watcher:
    """An observer that counts finished requests."""

    finished = 0

    @hookimpl
    def guideway_request_finished(self) -> None:
        self.finished += 1


watcher = Watcher()


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a broken grammar plugin, the probe modifiers and an observer."""
    entries = {
        "grammar.aaa": "no_such_module_of_anyone",
        "modifier.green_list": "tests.support.probes",
        "modifier.last_word_a": "tests.support.probes",
        "hooks.watcher": "test_generate_command:watcher",
    }
    install(tmp_path / "installed", "strangers", entries)
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))


@pytest.mark.slow
@pytest.mark.usefixtures("strangers")
def test_an_installed_plugin_that_is_broken_matters_only_where_it_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--model", "demo", "--prompt", PROMPT, "--max-tokens", "40")
    assert run(capsys, *arguments)[0] == 0
    assert run(capsys, *arguments, "--regex", "yes|no", "--strategy", "xgrammar")[0] == 0
    assert run(capsys, *arguments, "--regex", "yes|no")[0] == 0
    everyone_asked = tmp_path / "answer.txt"
    everyone_asked.write_text('root ::= "yes"', encoding="utf-8")
    status, _, err = run(capsys, *arguments, "--grammar-file", f"nobodys={everyone_asked}")
    assert status == 1
    assert "not asked, because nobody chose them with --strategy: aaa" in err
    status, _, err = run(capsys, *arguments, "--regex", "yes|no", "--strategy", "aaa")
    assert status == 1
    assert "grammar 'aaa' (strangers 1.0" in err


@pytest.mark.slow
@pytest.mark.usefixtures("strangers")
def test_modifiers_options_and_hooks_come_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    from test_generate_command import watcher  # the instance that the entry point names

    arguments = ("--model", "demo", "--prompt", PROMPT, "--max-tokens", "12")
    _, (plain,), _ = run(capsys, *arguments)
    status, (marked,), err = run(capsys, *arguments, "--modifier", 'green_list={"key": 3, "delta": 99}')
    assert (status, err) == (0, "")
    assert marked["text"] != plain["text"]
    status, (reported,), err = run(capsys, *arguments, "--modifier", 'last_word_a={"id": 300}')
    assert (status, err, reported["reports"]) == (0, "", {"last_word_a": {"said": 300}})
    assert "reports" not in plain
    limited = ("--regex", "[ab]{2}", "--strategy", "xgrammar", "--option", "grammar.xgrammar.max_threads=1")
    assert run(capsys, *arguments, *limited)[0] == 0
    assert run(capsys, *arguments, *limited[:4], "--option", "grammar.xgrammar.max_thread=1")[0] == 1
    assert run(capsys, *arguments, "--option", "max_threads=1")[0] == 2
    assert main(["--enable-plugin", "watcher", "generate", *arguments]) == 0
    assert watcher.finished == 1
    assert main(["--enable-plugin", "wacher", "generate", *arguments]) == 1


@pytest.mark.slow
def test_flags_that_need_a_temperature_are_judged_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--model", "demo", "--prompt", PROMPT, "--max-tokens", "6")
    sampled = ("--temperature", "1", "--seed", "1")
    several = {"n": ["--n", "2"], "best_of": ["--n", "2", "--best-of", "3"]}
    for flags in several.values():
        status, (line,), err = run(capsys, *arguments, *sampled, *flags)
        assert (status, err, len(line["outputs"])) == (0, "", 2)
    checked = ("--on-unenforced", "check", "--typical-p", "0.9", "--max-retries", "2")
    status, (line,), err = run(capsys, *arguments, *sampled, *checked)
    assert (status, err) == (0, "")
    for flags in (several["n"], several["best_of"], ["--typical-p", "0.9"], ["--max-retries", "2"]):
        assert main(["generate", *arguments, *flags]) == 2
        assert f"{flags[-2]} " in (err := capsys.readouterr().err)
        assert "set a temperature above 0" in err


@pytest.mark.usefixtures("strangers")
def test_configuration_and_sampling_come_from_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, prompts = tmp_path / "prod.toml", tmp_path / "prompts.jsonl"
    config.write_text(
        'model = "demo"\ngrammar = ["llguidance"]\nmax_num_seqs = 4\n[plugins]\nenable = ["watcher"]\n',
        encoding="utf-8",
    )
    entries = [
        {"prompt": PROMPT, "temperature": 1.0, "n": 3, "best_of": 4, "seed": 1, "max_tokens": 8},
        {"prompt": PROMPT, "max_tokens": 40, "stop": ["eter"], "tenant": "acme"},
        {"prompt": PROMPT, "max_tokens": 2, "logprobs": 2, "prompt_logprobs": 0},
        {"prompt": PROMPT, "top_p": 2},
        {"prompt": PROMPT, "logit_bias": {"0": "much"}},
        {"prompt": PROMPT, "regex": "yes|no", "tenant": 3},
        {"prompt": PROMPT, "regex": "yes|no", "modifiers": {"green_list": {"key": 3, "delta": 1}}},
    ]
    prompts.write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    monkeypatch.setenv("GUIDEWAY_CONFIG", str(config))
    from test_generate_command import watcher  # the instance that the entry point names

    watcher.finished = 0
    status, (several, stopped, scored, *refused), err = run(capsys, "--input", str(prompts))
    assert status == 1
    assert watcher.finished == 4
    assert len(several["outputs"]) == 3
    assert len({output["index"] for output in several["outputs"]}) == 3
    assert (stopped["finish_reason"], stopped["stop"]) == ("stop", "eter")
    assert stopped["text"].endswith("P")
    assert [len(entry["top"]) for entry in scored["logprobs"]] == [2, 2]
    assert scored["prompt_logprobs"][0] is None
    assert [line["error"] and line["error"]["field"] for line in refused] == ["top_p", "logit_bias", "tenant", None]
    assert refused[3]["strategy"] == "llguidance"
    assert "top_p must be" in err


@pytest.mark.slow
def test_log_probabilities_are_raw_or_processed(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["generate", "--model", "demo", "--prompt", "x", "--json", "--regex", "[0-9]", "--max-tokens", "4"]
    sums = {}
    for mode in ("raw", "processed"):
        assert main([*common, "--logprobs", "30", "--logprobs-mode", mode]) == 0
        (first, *_) = json.loads(capsys.readouterr().out)["logprobs"]
        assert first["token"] in "0123456789"
        likely = [top for top in first["top"] if top["token"].isdigit() and top["logprob"] is not None]
        sums[mode] = sum(math.exp(top["logprob"]) for top in likely)
    assert sums["processed"] == pytest.approx(1, abs=1e-4) and sums["raw"] < 0.999
    for wrong in (["--logprobs", "1", "--logprobs-mode", "cooked"], ["--logprobs-mode", "processed"]):
        with suppress(SystemExit):
            assert main([*common, *wrong]) == 2
        assert "--logprobs" in capsys.readouterr().err


def test_an_error_of_the_configuration_says_where_it_stands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("generate", "--model", "demo", "--prompt", "x")
    monkeypatch.setenv("GUIDEWAY_GRAMMAR", "xgramar")
    assert main(list(arguments)) == 1
    assert "It comes from GUIDEWAY_GRAMMAR." in capsys.readouterr().err
    monkeypatch.setenv("GUIDEWAY_GRAMMAR", "llguidance")
    assert main([*arguments, "--option", "grammar.llguidance.whitspace=x"]) == 1
    assert "It comes from --option." in capsys.readouterr().err
    assert main([*arguments, "--max-num-seqs", "0"]) == 2
    assert "--max-num-seqs: max_num_seqs must be" in capsys.readouterr().err


def test_a_model_that_reasons_is_asked_for_its_answer(
    schema: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    none: dict[str, Any] = {"reasoning": False, "thinking_token_budget": None}
    lines: list[dict[str, Any]] = [{}, {"thinking_token_budget": 4}, none, {"thinking_token_budget": 0}]
    path.write_text("".join(json.dumps({"prompt": PROMPT, **line}) + "\n" for line in lines), encoding="utf-8")
    arguments = ["--model", "demo", "--schema", schema, "--input", str(path), "--max-tokens", "60"]
    arguments += ["--reasoning-end-str", "</think>", "--thinking-token-budget", "8"]
    status, (eight, four, without, wrong), err = run(capsys, *arguments)
    assert status == 1
    assert err.startswith(
        "guideway: prompt 3 in line 4 was refused: thinking_token_budget must be a whole number of at least 1"
    )
    assert wrong["text"] == ""
    assert without["answer_start"] == without["num_reasoning_tokens"] == 0
    for line in (eight, four, without):
        jsonschema.validate(json.loads(line["text"][line["answer_start"] :]), SCHEMA)
    assert eight["num_reasoning_tokens"] - four["num_reasoning_tokens"] == 4
