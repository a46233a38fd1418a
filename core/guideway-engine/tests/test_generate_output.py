"""The lines that ``guideway generate`` writes: none is lost, whatever happens to the output."""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from guideway import Completion, FinishReason, GenerationResult, InvalidRequest, JsonSchema, SamplingParams
from guideway.api import hookimpl
from guideway.api.grammar import CompiledGrammar, Support
from guideway.api.types import Constraint
from guideway.command_line.program import main
from guideway.errors import UnsupportedGrammar
from guideway_demo_model import DemoModel
from guideway_engine import strategies
from guideway_engine.command_line import reading
from guideway_engine.command_line.answers import Answers
from guideway_engine.command_line.jobs import Job
from guideway_engine.command_line.lines import Lines, OutputLost
from guideway_llguidance.strategy import Strategy

from tests.support.distributions import install
from tests.support.stages import everyday, one_in
from tests.support.terminal import at_terminal

GENERATE = [sys.executable, "-m", "guideway", "generate", "--model", "demo"]


def job(its_id: str, **params: Any) -> Job:
    return Job(its_id, "x", "x", SamplingParams(**params))


def result(text: str, reason: FinishReason = FinishReason.STOP, **more: Any) -> GenerationResult:
    output = Completion(text=text, token_ids=tuple(range(len(text))), finish_reason=reason, **more)
    return GenerationResult(request_id="r", outputs=(output,))


def written(path: Path) -> list[tuple[str, str]]:
    return [(line["id"], line["text"]) for line in map(json.loads, path.read_text(encoding="utf-8").splitlines())]


@pytest.fixture
def full() -> Iterator[Callable[[int], None]]:
    """Return a function that ends the disk in each file after a number of bytes, so that a part of a line may fit."""
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)


def prompts(path: Path, *lines: dict[str, Any] | bytes) -> str:
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return str(path)


def test_a_file_gets_each_answer_at_once_and_the_order_of_the_input_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with Lines(str(path), digests=dict.fromkeys("abcd", "x")) as lines:
        answers = Answers([job(name) for name in "abcd"], lines)
        for index, expected in ((3, "d"), (1, "db"), (0, "dba")):
            answers.keep(index, result("X"))
            assert [its_id for its_id, _ in written(path)] == list(expected)
        answers.write_rest()
    assert written(path) == [("a", "X"), ("b", "X"), ("d", "X")]
    assert answers.summary(interrupted=True) == "guideway: interrupted: 3 of 4 done: 3 answered"


def test_a_stream_gets_answers_in_the_order_of_the_input(capsys: pytest.CaptureFixture[str]) -> None:
    """At an interrupt it gets all that are ready."""

    def ids() -> list[str]:
        return [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]

    with Lines(None) as lines:
        answers = Answers([job(name) for name in "abcd"], lines)
        for index, expected in ((1, ""), (3, ""), (0, "ab")):
            answers.keep(index, result("X"))
            assert ids() == list(expected)
        answers.write_rest()
        answers.write_rest()
    assert ids() == ["d"]


@pytest.mark.slow
def test_disturbed_runs_write_what_an_undisturbed_run_writes(tmp_path: Path) -> None:
    """After each run, all answers that were written are in the file, once."""
    program = Path(__file__).with_name("engine_support") / "disturbed_runs.py"
    subprocess.run([sys.executable, str(program), str(tmp_path / "answers.jsonl"), str(tmp_path / "told")], check=True)


def test_a_file_that_cannot_be_put_in_order_stays_as_it_is(tmp_path: Path, full: Callable[[int], None]) -> None:
    path, digests = tmp_path / "answers.jsonl", {"a": "of a", "b": "of b"}
    with (
        pytest.raises(OutputLost, match=r"the order of the input: File too large; its lines are complete, .* --resume"),
        Lines(str(path), digests=digests) as lines,
    ):
        answers = Answers([job("a"), job("b")], lines)
        answers.keep(1, result("B"))
        answers.keep(0, result("A"))
        full(20)
    assert written(path) == [("b", "B"), ("a", "A")]
    assert [each.name for each in tmp_path.iterdir()] == ["answers.jsonl"]
    full(resource.RLIM_INFINITY)
    with Lines(str(path), resume=True, digests=digests) as lines:
        assert lines.done == {"a", "b"}
    assert written(path) == [("a", "A"), ("b", "B")]


def test_the_summary_tells_what_became_of_all() -> None:
    schema = JsonSchema({"type": "integer"})
    error = InvalidRequest("no", field="prompt")
    jobs = [job(str(i), constraint=schema if i in (1, 2) else None) for i in range(7)]
    answers = Answers(jobs, None, {"6"})
    for index, each in enumerate(
        (
            result("one"),
            result("cu", FinishReason.LENGTH),
            result("t", unenforced=("constraint",)),
            result("long", FinishReason.LENGTH),  # without a constraint, and as long as requested
            result("", FinishReason.REFUSED, error=error),
            result("", FinishReason.INTERNAL_ERROR, error=error),
        )
    ):
        answers.keep(index, each)
    assert answers.summary(interrupted=False) == (
        "guideway: 7 prompts: 2 answered; 2 cut; 1 refused; 1 failed; 1 answered before"
    )


def test_a_file_of_answers_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text("precious\n", encoding="utf-8")
    for more, said in (([], "already exists; continue it with --resume"), (["--resume"], "line 1 is not a line")):
        assert main(["generate", "--model", "demo", "--prompt", "x", "-o", str(path), *more]) == 1
        assert said in capsys.readouterr().err
        assert path.read_text(encoding="utf-8") == "precious\n"
    assert main(["generate", "--model", "demo", "--prompt", "x", "--resume"]) == 2
    assert "name it with --output" in capsys.readouterr().err


def test_resuming_keeps_whole_answers_and_drops_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    jobs = [job(name) for name in "abcde"]
    digests = {name: f"of {name}" for name in "abcde"}
    with Lines(str(path), resume=True, digests=digests) as lines:
        assert lines.done == set()
        answers = Answers(jobs, lines)
        answers.keep(0, result("A\u2028\u0085"))
        answers.keep(1, result("", FinishReason.REFUSED, error=InvalidRequest("no", field="prompt")))
        answers.keep(2, result("C", FinishReason.LENGTH))
        answers.keep(3, result("", FinishReason.INTERNAL_ERROR, error=InvalidRequest("no", field="prompt")))
    path.chmod(0o640)
    with path.open("ab") as file:
        file.write(b'{"index": 4, "id": "e", "text": "torn')
    before = path.read_bytes()
    with pytest.raises(InvalidRequest, match=r"line 3 is no answer to what is asked now under the id 'c'"):
        Lines(str(path), resume=True, digests=digests | {"c": "another"})
    assert path.read_bytes() == before
    with Lines(str(path), resume=True, digests=digests | {"b": "another", "e": "another"}) as lines:
        assert lines.done == {"a", "c"}
    assert [json.loads(line)["id"] for line in path.read_bytes().split(b"\n")[:-1]] == ["a", "c"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["answers.jsonl"]
    with pytest.raises(InvalidRequest, match="regular file"):
        Lines(os.devnull, resume=True)


def test_two_runs_do_not_share_a_file(tmp_path: Path) -> None:
    """For every combination of new and resumed runs, the second is refused and the first loses nothing."""
    path, digests = tmp_path / "answers.jsonl", {"a": "of a", "b": "of b"}
    for first, second in itertools.product((False, True), repeat=2):
        with Lines(str(path), resume=first, digests=digests) as lines:
            with pytest.raises(InvalidRequest, match=rf"process {os.getpid()} \(.*\) is using it") as refused:
                Lines(str(path), resume=second, digests=digests)
            assert refused.value.field == "output"
            Answers([job("a"), job("b")], lines).keep(0, result("A"))
            with pytest.raises(InvalidRequest, match="is using it"):
                Lines(str(path), resume=second, digests=digests)
        assert written(path) == [("a", "A")]
        path.unlink()
    # the replacement of a file is locked too
    path.write_text('{"id": "a", "finish_reason": "refused"}\n', encoding="utf-8")
    with Lines(str(path), resume=True, digests=digests) as lines:
        with pytest.raises(InvalidRequest, match="is using it"):
            Lines(str(path), resume=True, digests=digests)
        Answers([job("a")], lines).keep(0, result("A"))
    assert written(path) == [("a", "A")]


@pytest.mark.slow  # each run loads a model
def test_of_two_that_resume_at_once_one_is_refused(tmp_path: Path) -> None:
    names = [str(i) for i in range(200)]
    given = prompts(tmp_path / "prompts.jsonl", *({"prompt": "x", "id": name, "regex": "[ab]{9}"} for name in names))
    path = tmp_path / "answers.jsonl"
    command = [*GENERATE, "--input", given, "-o", str(path), "--resume"]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [run.communicate()[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 1], said
    assert sum("is using it" in each for each in said) == 1
    assert [its_id for its_id, _ in written(path)] == names


@pytest.mark.parametrize("name", ["answers.jsonl.resuming", "answers.jsonl.part", ".answers.jsonl.resuming"])
def test_no_name_beside_the_file_is_written_to(name: str, tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "answers.jsonl"
    victim.write_text("precious", encoding="utf-8")
    (tmp_path / name).symlink_to(victim)
    path.write_text('{"id": "a", "finish_reason": "refused"}\n', encoding="utf-8")
    with Lines(str(path), resume=True, digests={"a": "of a"}) as lines:
        Answers([job("a")], lines).keep(0, result("A"))
    assert (written(path), victim.read_text(encoding="utf-8")) == ([("a", "A")], "precious")
    (tmp_path / "link.jsonl").symlink_to(path)
    for resume in (True, False):
        with pytest.raises(InvalidRequest, match="it is a symbolic link; name the file itself"):
            Lines(str(tmp_path / "link.jsonl"), resume=resume)


def test_two_answers_to_one_id_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    twice = "".join(json.dumps({"id": name, "finish_reason": "stop", "text": ""}) + "\n" for name in "abcb")
    for content, digests in ((twice, {"a": "1", "b": "2"}), (twice, {"a": "1"}), (twice[:-1], {})):
        path.write_text(content, encoding="utf-8")
        if content is twice:
            with pytest.raises(InvalidRequest, match=r"lines 2 and 4 are both answers to the id 'b'. Delete one"):
                Lines(str(path), resume=True, digests=digests)
            assert path.read_text(encoding="utf-8") == twice
        else:  # the second line is incomplete
            Lines(str(path), resume=True, digests=digests).__exit__()
            assert [its_id for its_id, _ in written(path)] == ["a", "b", "c"]


def test_the_input_is_no_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = prompts(tmp_path / "prompts.jsonl", *TWO)
    before = Path(given).read_bytes()
    for command in (["generate"], ["embed"]):
        for more in ([], ["--resume"]):
            assert (
                main([*command, "--model", "nothing", "--input", given, "-o", f"{tmp_path}/./prompts.jsonl", *more])
                == 2
            )
            assert "--input and --output name the same file" in capsys.readouterr().err
    assert Path(given).read_bytes() == before


@pytest.mark.parametrize("kind", one_in(3, ["stdout", "stderr", "fd", "pipe", "null"]))
def test_streams_are_outputs_as_they_are(kind: str, tmp_path: Path) -> None:
    program = """
import os, sys
from guideway.command_line.quiet import quiet_libraries
from guideway_engine.command_line.lines import Lines
with quiet_libraries(), Lines(sys.argv[1]) as lines:
    for name in "ab":
        lines.write({"id": name}, name)
"""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    paths = {"stdout": "/dev/stdout", "stderr": "/dev/stderr", "fd": "/dev/fd/2", "null": os.devnull}
    path = paths.get(kind, str(tmp_path / "pipe"))
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        subprocess.run([sys.executable, "-c", program, path], stdout=out, stderr=err, check=True)
    found = {"stdout": (tmp_path / "out").read_bytes(), "pipe": os.read(reader, 100)}
    found["stderr"] = found["fd"] = (tmp_path / "err").read_bytes()
    os.close(reader)
    for each, content in found.items():
        is_it = each == kind or {each, kind} == {"stderr", "fd"}
        assert content == (b'{"id": "a"}\n{"id": "b"}\n' if is_it else b"")


def test_a_run_without_an_answer_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with pytest.raises(RuntimeError), Lines(str(path)):
        assert path.exists()
        raise RuntimeError
    assert not path.exists()


TWO = [{"prompt": "x", "regex": "[ab]"}, {"prompt": "y", "regex": "[ab]"}]


SOMETHING_ELSE: list[tuple[Any, list[str]]] = [
    (TWO[::-1], []),
    ([{**TWO[0], "prompt": "z"}, TWO[1]], []),
    (TWO, ["--seed", "3"]),
    (TWO, ["--model", "another"]),
]
MORE_OF_IT: list[tuple[Any, list[str]]] = [
    ([{**TWO[0], "regex": "a"}, TWO[1]], []),
    ([{**TWO[0], "max_tokens": 9}, TWO[1]], []),
    *((TWO, flags) for flags in (["--temperature", "1"], ["--max-tokens", "9"], ["--raw"])),
    *((TWO, flags) for flags in (["--strategy", "xgrammar"], ["--stop", "a"], ["--whitespace", "any"])),
]


@pytest.mark.parametrize(("lines", "flags"), everyday([*SOMETHING_ELSE, *MORE_OF_IT], *SOMETHING_ELSE[1:3]))
def test_an_answer_to_something_else_is_not_kept(
    lines: list[dict[str, Any]], flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path, given = tmp_path / "answers.jsonl", prompts(tmp_path / "prompts.jsonl", *TWO)
    monkeypatch.setenv("GUIDEWAY_MODEL", "demo")
    assert main(["generate", "--input", given, "-o", str(path)]) == 0
    before = path.read_bytes()
    prompts(tmp_path / "prompts.jsonl", *lines)
    monkeypatch.setattr("guideway_engine.command_line.generate.open_engine", None)
    capsys.readouterr()
    assert main(["generate", "--input", given, "-o", str(path), "--resume", *flags]) == 1
    err = capsys.readouterr().err
    assert f"{path}, line 1 is no answer to what is asked now under the id '0'" in err
    assert "name another file with --output" in err
    assert path.read_bytes() == before


@pytest.mark.slow  # string hashes differ between processes
def test_what_decides_no_answer_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, given = tmp_path / "answers.jsonl", prompts(tmp_path / "prompts.jsonl", *TWO)
    schema, same = tmp_path / "schema.json", tmp_path / "same.json"
    for each in (schema, same):
        each.write_text('{"enum": ["a"]}', encoding="utf-8")
    program = [sys.executable, "-m", "guideway", "generate", "--model", "demo", "-o", str(path), "--schema"]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    subprocess.run([*program, str(schema), "--input", given], check=True, env=environment)
    other = prompts(tmp_path / "other.jsonl", *TWO, {"prompt": "z", "choice": ["a"]})
    arguments = ["--input", other, "--max-num-seqs", "2", "--priority", "3", "--temperature", "0.0", "--seed", "none"]
    monkeypatch.chdir(tmp_path)
    assert main([*program[3:], str(same), *arguments, "--resume"]) == 0
    assert "1 answered; 2 answered before" in capsys.readouterr().err


@pytest.mark.slow
def test_answers_of_an_older_version_are_kept_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, given = tmp_path / "answers.jsonl", prompts(tmp_path / "prompts.jsonl", *TWO)
    prompts(path, {"id": "0", "text": "old", "finish_reason": "stop"})
    assert main(["generate", "--model", "demo", "--input", given, "-o", str(path), "--resume"]) == 0
    warning, _ = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"guideway: {path}: 1 answers do not say what was asked")
    assert [text for _, text in written(path)] == ["old", "b"]
    assert "request_digest" in json.loads(path.read_text(encoding="utf-8").splitlines()[1])


@pytest.mark.slow
def test_a_run_goes_on_in_the_folder_of_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(DemoModel().path(), tmp_path / "model"))
    given = prompts(folder / "prompts.jsonl", TWO[0])
    arguments = ["generate", "--model", str(folder), "--input", given, "-o", str(folder / "answers.json")]
    assert main(arguments) == 0
    prompts(folder / "prompts.jsonl", *TWO)
    (folder / "README.md").write_text("mine", encoding="utf-8")
    assert main([*arguments, "--resume"]) == 0
    assert "1 answered; 1 answered before" in capsys.readouterr().err


def test_two_lines_of_one_id_are_refused_before_the_model_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answers.jsonl"
    given = prompts(tmp_path / "prompts.jsonl", {"prompt": "x", "id": 2}, b"", {"prompt": "y"}, {"prompt": "z"})
    assert main(["generate", "--model", "nothing", "--input", given, "-o", str(path)]) == 1
    assert "lines 1 and 4 of the input have the same id '2'" in capsys.readouterr().err
    assert not path.exists()


def test_a_run_goes_on_where_another_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, lines = tmp_path / "answers.jsonl", [{"prompt": "x", "id": name, "regex": name} for name in "abc"]
    given = prompts(tmp_path / "prompts.jsonl", lines[0], {**lines[1], "top_p": 2})
    assert main(["generate", "--model", "demo", "--input", given, "-o", str(path)]) == 1
    given = prompts(tmp_path / "prompts.jsonl", *lines)
    capsys.readouterr()
    assert main(["generate", "--model", "demo", "--input", given, "-o", str(path), "--resume"]) == 0
    out, err = capsys.readouterr()
    assert written(path) == [("a", "a"), ("b", "b"), ("c", "c")]
    assert out == ""
    assert re.match(r"guideway: 3 prompts: 2 answered; 1 answered before; \d+ tokens in", err)


def test_a_full_disk_names_the_file_and_its_last_whole_line(tmp_path: Path, full: Callable[[int], None]) -> None:
    path = tmp_path / "answers.jsonl"
    with Lines(str(path)) as lines:
        answers = Answers([job("a"), job("b")], lines)
        answers.keep(0, result("A"))
        whole = path.read_bytes()
        full(len(whole) + 20)
        with pytest.raises(OutputLost) as lost:
            answers.keep(1, result("B"))
    assert str(lost.value) == (
        f"cannot write the output {str(path)!r}: File too large; its last complete line is line 1, of prompt a; "
        "--resume answers the rest"
    )
    assert path.read_bytes() == whole


def test_a_pipe_that_is_closed_is_not_said_to_be_resumable() -> None:
    reader, writer = os.pipe()
    with Lines(f"/dev/fd/{writer}") as lines:
        lines.write({}, "a")
        os.close(reader)
        with pytest.raises(OutputLost, match=r"Broken pipe; its last complete line is line 1, of prompt a$"):
            lines.write({}, "b")
    os.close(writer)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["-o", "/dev/full"], []])
def test_a_device_that_is_full_is_named(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = subprocess.run(
            [*GENERATE, "--prompt", "x", "--max-tokens", "1", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    what = "the output '/dev/full'" if arguments else "to standard output"
    assert (done.returncode, done.stderr) == (
        1,
        f"guideway: cannot write {what}: No space left on device; it has no complete line\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["0", "1", "2", "01", "012"])
def test_a_closed_output_is_an_error_and_no_traceback(closed: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    closing = " ".join(f"{number}>&-" for number in closed)
    command = f'exec "$@" {closing}'
    shown = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, "-m", "guideway", "config", "show"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == (1 if "1" in closed else 0)
    told = "1" in closed and "2" not in closed
    assert shown.stderr == ("guideway: cannot write to standard output: Bad file descriptor\n" if told else "")
    if closed == "012":
        arguments = [*GENERATE, "--prompt", "x", "--regex", "a", "-o", str(path)]
        assert subprocess.run(["sh", "-c", command, "sh", *arguments], check=False).returncode == 0
        assert written(path) == [("0", "a")]


def test_a_line_that_is_not_utf_8_costs_itself_and_has_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"prompt": "x", "regex": "a"}
    given = prompts(tmp_path / "prompts.jsonl", good, "{'é': '".encode() + b"\xff'}", good)
    assert main(["generate", "--model", "demo", "--input", given]) == 1
    out, err = capsys.readouterr()
    assert [line["text"] for line in map(json.loads, out.splitlines())] == ["a", "", "a"]
    assert f"prompt 1 was refused: {given}, line 2 is not UTF-8: the byte 0xff at column 8" in err
    (tmp_path / "prompts.jsonl").write_bytes('{"prompt": "x"}'.encode("utf-16"))
    assert main(["generate", "--model", "demo", "--input", given]) == 1
    assert capsys.readouterr().err == f"guideway: {given} is UTF-16; convert it to UTF-8\n"


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("generate", "--schema {}"),
        ("generate", "--grammar-file lark={}"),
        ("generate", "--config {}"),
        ("inspect", "--text-file {} --regex a"),
    ],
)
def test_what_is_read_whole_is_a_regular_file(
    command: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as large:
        large.truncate(1 << 40)
    prompt = ["--prompt", "x"] if command == "generate" else []
    for name, said in (
        ("pipe", "it is a named pipe, not a regular file"),
        ("large", "it is larger than"),
        (".", "Is a"),
    ):
        arguments = flag.format(tmp_path / name).split()
        assert main([command, "--model", "demo", *prompt, *arguments]) == 1
        err = capsys.readouterr().err
        assert said in err and str(tmp_path / name) in err


@pytest.mark.parametrize("command", ["generate", "embed", "inspect"])
def test_lines_are_read_one_at_a_time_and_are_bounded(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LONGEST", 100)
    os.mkfifo(tmp_path / "pipe")
    ended: list[bool] = []

    def write() -> None:
        with (tmp_path / "pipe").open("wb", buffering=0) as pipe, suppress(BrokenPipeError):
            pipe.write(b'{"id": "a", "prompt": "x", "text": "", "finish_reason": "stop"}\n')
            while True:  # a line that never ends
                pipe.write(b"x" * 1000)
        ended.append(True)

    thread = threading.Thread(target=write)
    thread.start()
    what = "--record" if command == "inspect" else "--input"
    assert main([command, "--model", "nothing", what, str(tmp_path / "pipe")]) == 1
    thread.join()
    assert ended and f"{tmp_path / 'pipe'}, line 2 is longer than" in capsys.readouterr().err


def test_a_schema_that_is_wrong_for_all_prompts_is_named_once_before_the_model_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = prompts(tmp_path / "prompts.jsonl", {"prompt": "x"}, {"prompt": "y"})
    wrong = '{"properties": {"a": {"type": "strnig"}}}'
    assert main(["generate", "--model", "./no-model", "--input", given, "--schema", wrong]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--schema: " in err and "#/properties/a/type" in err


@pytest.mark.parametrize(
    ("flag", "status", "said"),
    [
        (["--max-tokens", "0"], 2, "guideway generate: error: --max-tokens must be a whole number of at least 1"),
        (["--top-p", "2"], 2, "guideway generate: error: --top-p must be "),
        (
            ["--regex", "*a"],
            2,
            "guideway: --regex is no regular expression: a `*` with nothing to repeat\n    *a\n    ^\n",
        ),
        (["--regex", "a(b"], 2, "guideway: --regex is no regular expression: unclosed group\n    a(b\n     ^\n"),
    ],
)
def test_a_flag_that_is_wrong_for_all_prompts_is_named_once_before_the_model_loads(
    flag: list[str], status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = prompts(tmp_path / "prompts.jsonl", {"prompt": "x"}, {"prompt": "y"})
    assert main(["generate", "--model", "nothing", "--input", given, *flag]) == status
    out, err = capsys.readouterr()
    assert err.startswith(said)
    assert (out, err.count("guideway")) == ("", 1)


def test_a_flag_that_a_line_overrides_is_no_error_of_that_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = prompts(tmp_path / "prompts.jsonl", {"prompt": "x", "max_tokens": 1}, {"prompt": "y"})
    assert main(["generate", "--model", "demo", "--input", given, "--max-tokens", "0"]) == 1
    out, err = capsys.readouterr()
    assert [json.loads(line)["num_tokens"] for line in out.splitlines()] == [1, 0]
    assert "prompt 1 in line 2 was refused: " in err


def test_a_file_of_plain_text_is_no_file_of_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("Is Paris in France?\nIs Rome?\n", encoding="utf-8")
    assert main(["generate", "--model", "nothing", "--input", str(path), "-o", str(tmp_path / "answers")]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"guideway: no line of {path} can be read: {path}, line 1 is not JSON: ")
    assert err.endswith('such as {"prompt": "Is Paris in France?"}\n')
    assert err.count("\n") == 1
    assert not (tmp_path / "answers").exists()


def test_an_option_given_twice_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    for twice in (["--regex", "a", "--regex", "b"], ["--close", "--no-close"], ["--raw", "--raw"]):
        assert main(["generate", "--model", "demo", "--prompt", "x", *twice]) == 2
        assert "is given twice; keep one" in capsys.readouterr().err


@pytest.mark.slow
def test_only_what_is_needed_is_imported() -> None:
    program = (
        "import sys\n"
        "from guideway.command_line.program import main\n"
        "status = main(sys.argv[1:])\n"
        "heavy = ('llguidance', 'xgrammar', 'lmformatenforcer', 'scipy', 'torch._dynamo', 'torch.distributed.tensor')\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "sys.exit(status)"
    )
    command = [sys.executable, "-c", program, "generate", "--model", "demo", "--prompt", "x"]
    for constraint, imported in (
        ([], "[]"),
        (["--schema", '{"enum": ["a"]}'], "['llguidance']"),
    ):
        done = subprocess.run(
            [*command, "--max-tokens", "40", *constraint], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, imported)


class Boaster(Strategy):
    """A strategy that accepts every constraint but cannot compile any."""

    name = "aaa"

    def supports(self, constraint: Constraint) -> Support:
        return Support()

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        raise UnsupportedGrammar("not after all", feature="all")


class Entry:
    @hookimpl
    def guideway_grammar_strategy(self) -> type[Boaster]:
        return Boaster


entry = Entry()


@pytest.mark.slow
def test_what_does_not_compile_is_tried_with_all_strategies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path / "installed", "guideway-boaster", {"grammar.aaa": "test_generate_output:entry"})
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    monkeypatch.setattr(strategies, "OURS", ("guideway-boaster", *strategies.OURS))
    given = prompts(tmp_path / "prompts.jsonl", {"prompt": "x", "regex": "a"}, {"prompt": "x", "regex": "b"})
    status = main(["generate", "--model", "demo", "--input", given])
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["text"], line["strategy"]) for line in lines] == [("a", "llguidance"), ("b", "llguidance")]
    assert (status, err.partition(";")[0]) == (0, "guideway: 2 prompts: 2 answered")


@pytest.mark.slow
def test_what_native_libraries_say_reaches_no_program() -> None:
    program = (
        "import sys; from guideway import Engine, JsonSchema, SamplingParams\n"
        "with Engine('demo', grammar='xgrammar') as engine:\n"
        "    schema = JsonSchema({'type': 'string', 'pattern': '^a(?=b)b$'})\n"
        "    print(engine.generate('x', SamplingParams(constraint=schema))[0].text)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ('"ab"\n', "")


@pytest.mark.slow
def test_what_native_libraries_say_reaches_no_terminal() -> None:
    # xgrammar's message for this is "[time] /project/cpp/...: Warning: Lookahead assertion is not supported"
    schema = json.dumps({"type": "string", "pattern": "^a(?=b)b$"})
    command = [*GENERATE, "--prompt", "x", "--schema", schema, "--strategy", "xgrammar"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == "guideway: prompt 0: xgrammar does not enforce `pattern:lookaround` at #/pattern\n"


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_at_a_terminal_writes_what_is_ready(sent: signal.Signals, status: int, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    long = {"prompt": "x", "regex": "[a-z]{900}", "max_tokens": 900, "close": False}
    given = prompts(tmp_path / "prompts.jsonl", long, {"prompt": "x", "regex": "b"}, long)
    with at_terminal([*GENERATE, "--input", given, "-o", str(path)]) as terminal:
        terminal.read_until(b"1/3")  # one of three prompts has ended, and it is not the first
        time.sleep(0.1)
        terminal.process.send_signal(sent)
        shown = terminal.read_all()
    assert terminal.process.returncode == status
    assert written(path) == [("1", "b")]
    assert b"left" in shown
    told = rb"guideway: interrupted: 1 of 3 done: 1 answered; \d+ tokens? in [\d.]+ s, \d+ tokens/s\r\n$"
    assert re.search(told, shown)
