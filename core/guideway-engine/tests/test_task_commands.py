"""``guideway embed``, ``rerank`` and ``classify``."""

from __future__ import annotations

import json
import mmap
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_support.encoders import encoder, stored, texts
from guideway import Engine, InvalidRequest
from guideway.command_line.program import main
from guideway_engine.command_line.lines import OutputLost
from guideway_engine.command_line.task_outputs import Matrix
from guideway_engine.task_results import Embedding
from safetensors.torch import load_file, save_file

from tests.support.stages import one_in

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    head = "ForSequenceClassification"
    return {
        "embed": stored(encoder("Bert"), folder / "embed"),
        "rerank": stored(encoder("Bert", head, num_labels=1), folder / "rerank"),
        "classify": stored(encoder("Bert", head, id2label={0: "no", 1: "yes"}), folder / "classify"),
    }


@pytest.fixture
def run(models: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("GUIDEWAY_MODEL", "GUIDEWAY_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run(task: str, *arguments: str) -> tuple[int, str, str]:
        try:
            status = main([task, "--model", str(models[task]), *arguments])
        except SystemExit as ended:
            status = int(ended.code or 0)
        return (status, *capsys.readouterr())

    return run


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_other_weights_in_the_same_folder_are_another_model(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(models["embed"], tmp_path / "model"))
    arguments = ["embed", "--model", str(folder), "--text", "w1", "-o", str(tmp_path / "out.jsonl")]
    assert main(arguments) == 0
    assert main([*arguments, "--resume"]) == 0
    (file,) = folder.glob("*.safetensors")
    before = load_file(file)
    for name in (min(before), max(before)):  # its position in the file does not matter
        save_file({**before, name: before[name] + 0.5}, file, metadata={"format": "pt"})
        assert main([*arguments, "--resume"]) == 1
        assert "line 1 is no answer to what is asked now" in capsys.readouterr().err
    save_file(before, file, metadata={"format": "pt"})
    assert main([*arguments, "--resume"]) == 0


def test_a_matrix_has_a_row_for_each_text(run: Run, models: dict[str, Path], tmp_path: Path) -> None:
    given = [*texts(5), "w1 " * 100, "w2"]
    (tmp_path / "in.txt").write_text("\n".join([*given, ""]))
    output = str(tmp_path / "out.npy")
    status, out, err = run("embed", "--input", str(tmp_path / "in.txt"), "--output", output)
    assert (status, out) == (1, "")
    assert "text 5: the input has 102 tokens" in err and "7 texts: 6 done; 1 refused or failed" in err
    found = np.load(output)
    assert found.shape == (7, 32) and found.dtype == np.float32
    with Engine(models["embed"]) as engine:
        wanted = [result.vector for result in engine.embed(given)]
    assert np.isnan(found[5]).all() and wanted[5] is None
    for row in (0, 4, 6):
        np.testing.assert_allclose(found[row], wanted[row], atol=1e-6)  # type: ignore[arg-type]
    assert run("embed", "--text", "w1", "-o", output)[0] == 1  # the file exists
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


@pytest.mark.parametrize(
    ("name", "given"),
    one_in(
        2, [("in.txt", b"w1\n\n \t\r\nw2 w3\n\n"), ("in.jsonl", b'{"prompt": "w1"}\n\n \t\n{"prompt": "w2 w3"}\n\n')]
    ),
    ids=["text", "json"],
)
def test_a_row_is_found_by_its_line_whatever_is_blank(name: str, given: bytes, run: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(given)
    status, _, err = run("embed", "--input", str(tmp_path / name), "--output", str(tmp_path / "out.npy"))
    assert status == 1
    assert f"{name}, line 2 is blank" in err and "5 texts: 2 done; 3 refused or failed" in err
    assert np.isnan(np.load(tmp_path / "out.npy")).all(1).tolist() == [False, True, True, False, True]
    run("embed", "--input", str(tmp_path / name), "--output", str(tmp_path / "out.jsonl"))
    found = lines((tmp_path / "out.jsonl").read_text())
    assert [line["id"] for line in found if line["finish_reason"] == "done"] == ["0", "3"]
    assert run("embed", "--input", str(tmp_path / name), "--output", str(tmp_path / "out.jsonl"), "--resume")[0] == 1
    (tmp_path / name).write_bytes(b" \n\n")
    assert "holds no text" in run("embed", "--input", str(tmp_path / name))[2]


def test_a_key_that_a_line_has_twice_is_an_error_of_that_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "w1", "prompt": "w2"}\n{"prompt": "w3"}\n')
    status, out, err = run("embed", "--input", str(tmp_path / "in.jsonl"))
    assert status == 1 and "line 1 is not JSON: the key 'prompt' appears twice" in err
    assert [line["finish_reason"] for line in lines(out)] == ["refused", "done"]


def test_a_matrix_that_does_not_fit_is_an_error_and_not_there(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # as on a full disk
    try:
        said = pytest.raises(OutputLost, match="File too large; a matrix is whole or not there")
        with said, Matrix(str(tmp_path / "out.npy"), 1000) as matrix:
            matrix.write(999, Embedding(request_id="", vector=np.ones(32, dtype=np.float32)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not list(tmp_path.iterdir())


def test_a_matrix_is_one_runs_and_follows_no_link(tmp_path: Path) -> None:
    path, victim = tmp_path / "out.npy", tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "out.npy.part").symlink_to(victim)
    with Matrix(str(path), 1) as matrix:
        with pytest.raises(InvalidRequest, match=r"process \d+ \(.*\) is using it"):
            Matrix(str(path), 1)
        matrix.write(0, Embedding(request_id="", vector=np.ones(3, np.float32)))
        assert path.stat().st_size == 0
    assert np.load(path).shape == (1, 3) and victim.read_text() == "precious"
    with pytest.raises(InvalidRequest, match="it already exists; name a new file"):
        Matrix(str(path), 1)
    (tmp_path / "link.npy").symlink_to(tmp_path / "nothing.npy")
    with pytest.raises(InvalidRequest, match="it is a symbolic link"):
        Matrix(str(tmp_path / "link.npy"), 1)


@pytest.mark.parametrize("vector", [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0], [[1.0, 2.0, 3.0]]])
def test_a_row_of_another_shape_is_refused(vector: list[Any], tmp_path: Path) -> None:
    """Workflows of other distributions may return one."""
    with pytest.raises(OutputLost, match="shape"), Matrix(str(tmp_path / "out.npy"), 3) as matrix:
        matrix.write(0, Embedding(request_id="", vector=np.ones(3, np.float32)))
        matrix.write(1, Embedding(request_id="", vector=vector))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_matrix_is_written_and_not_mapped_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk under a memory map ends the process with a signal."""
    monkeypatch.setattr(mmap, "mmap", None)
    with Matrix(str(tmp_path / "out.npy"), 600) as matrix:
        for row in (599, 3):
            matrix.write(row, Embedding(request_id="", vector=np.full(5, row, dtype=np.float32)))
        matrix.write(4, Embedding(request_id=""))
    found = np.load(tmp_path / "out.npy")
    assert (found.shape, found.dtype) == ((600, 5), np.float32)
    assert np.flatnonzero(~np.isnan(found).any(1)).tolist() == [3, 599]
    assert (found[599] == 599).all() and (found[3] == 3).all()


@pytest.mark.parametrize("output", one_in(2, ["out.jsonl", "out.json"]))
def test_a_run_goes_on_in_the_folder_of_its_model(
    output: str, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(models["embed"], tmp_path / "model"))
    (folder / "in.json").write_text('{"prompt": "w1"}\n')
    arguments = ["embed", "--model", str(folder), "--input", str(folder / "in.json"), "-o", str(folder / output)]
    assert main(arguments) == 0
    (folder / "in.json").write_text('{"prompt": "w1"}\n{"prompt": "w2"}\n')
    for name in ("vectors.npy", "other.jsonl", "other.jsonl.part", "notes.txt", "README.md"):
        (folder / name).write_text("mine")
    (folder / "__pycache__").mkdir()
    assert main([*arguments, "--resume"]) == 0
    assert "2 texts: 1 done; 1 done before" in capsys.readouterr().err
    for name in ("tokenizer.json", "vocab.txt", "sentence_bert_config.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text((folder / name).read_text() + " " if (folder / name).exists() else "{}")
        assert main([*arguments, "--resume"]) == 1
        assert "line 1 is no answer to what is asked now" in capsys.readouterr().err
        shutil.copyfile(models["embed"] / "tokenizer.json", folder / "tokenizer.json")
        if name != "tokenizer.json":
            (folder / name).unlink()


def test_json_lines_go_in_and_out_and_a_run_goes_on(run: Run, tmp_path: Path) -> None:
    entries = [
        {"prompt": "w1 w2", "id": "a"},
        {"prompt_token_ids": [2, 6, 7, 3], "id": "b"},
        {"prompt": 3, "id": "c"},
        {"text": "w1"},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join([*map(json.dumps, entries), "{"]))
    arguments = ("--input", str(tmp_path / "in.jsonl"), "--dimensions", "3", "-o", str(tmp_path / "out.jsonl"))
    status, _, err = run("embed", *arguments)
    found = lines((tmp_path / "out.jsonl").read_text())
    assert status == 1
    assert [line["finish_reason"] for line in found] == ["done", "done", "refused", "refused", "refused"]
    assert found[0]["embedding"] == found[1]["embedding"] and len(found[0]["embedding"]) == 3
    assert "unknown key 'text'" in found[3]["error"]["message"] and "line 5 is not JSON" in found[4]["error"]["message"]
    assert "5 texts: 2 done; 3 refused or failed" in err
    entries[2]["prompt"] = "w3"
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, entries[:3])))
    assert run("embed", *arguments)[0] == 1  # the output exists already
    status, _, err = run("embed", *arguments, "--resume")
    assert status == 0 and "3 texts: 1 done; 2 done before" in err
    found = lines((tmp_path / "out.jsonl").read_text())
    assert [(line["index"], line["id"]) for line in found] == [(0, "a"), (1, "b"), (2, "c")]
    status, _, err = run("embed", *arguments, "--resume")
    assert status == 0 and "0 done; 3 done before" in err
    before = (tmp_path / "out.jsonl").read_bytes()
    for more in (["--truncate", "left"], ["--dtype", "float64"]):
        status, _, err = run("embed", *arguments, "--resume", *more)
        assert status == 1 and "line 1 is no answer to what is asked now under the id 'a'" in err
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, [entries[0], entries[1] | {"id": "c"}])))
    status, _, err = run("embed", *arguments, "--resume")
    assert status == 1 and "line 3 is no answer to what is asked now under the id 'c'" in err
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, [entries[0], entries[0]])))
    status, _, err = run("embed", *arguments, "--resume")
    assert status == 1 and "lines 1 and 2 of the input have the same id 'a'" in err
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_documents_are_scored_for_a_query(run: Run, models: dict[str, Path], tmp_path: Path) -> None:
    documents = texts(4, 20)
    (tmp_path / "in.txt").write_text("\n".join(documents))
    status, out, _ = run("rerank", "--query", "w5", "--input", str(tmp_path / "in.txt"))
    with Engine(models["rerank"]) as engine:
        wanted = [score.score for score in engine.rerank("w5", documents)]
    assert status == 0
    np.testing.assert_allclose([line["score"] for line in lines(out)], wanted, atol=1e-6)  # type: ignore[arg-type]
    pairs = "\n".join(json.dumps({"query": "w5", "document": document}) for document in documents)
    (tmp_path / "in.jsonl").write_text(pairs)
    assert [line["score"] for line in lines(run("rerank", "--input", str(tmp_path / "in.jsonl"))[1])] == [
        line["score"] for line in lines(out)
    ]
    status, _, err = run("rerank", "--text", "w1")
    assert status == 2 and "give --query" in err


def test_texts_and_pairs_are_labelled(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "w1"}\n{"pair": ["w1", "w2"]}\n{"pair": ["w1"]}\n')
    status, out, _ = run("classify", "--input", str(tmp_path / "in.jsonl"))
    first, second, third = lines(out)
    assert status == 1
    assert {first["label"], second["label"]} <= {"no", "yes"} and third["label"] is None
    assert sum(second["probabilities"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("task", "arguments", "status", "said"),
    [
        ("embed", ("--text", "w1", "--resume"), 2, "name it with --output"),
        ("embed", ("--text", "w1", "--resume", "-o", "x.npy"), 2, "a matrix is whole or not there"),
        ("classify", ("--text", "w1", "-o", "x.npy"), 2, "classify makes none"),
        ("embed", ("--input", "nothing.txt"), 1, "cannot read the input 'nothing.txt'"),
        ("embed", ("--text", "w1", "--workflow", "rerank"), 1, "cannot serve BertModel"),
        ("embed", ("--text", "w1", "--option", "workflow.embed.driver=fast"), 1, "driver of workflow.embed must be"),
        ("embed", ("--text", "w1", "--dimensions", "0"), 2, "must be a whole number of at least 1, not '0'"),
        ("embed", ("--text", "w1", "-o", "no/such/folder.npy"), 1, "cannot write the output"),
        ("embed", (), 2, "one of the arguments --text --input is required"),
    ],
    ids=["resume", "matrix", "labels", "file", "workflow", "driver", "dimensions", "folder", "nothing"],
)
def test_wrong_usage_says_what_to_do(
    task: str, arguments: tuple[str, ...], status: int, said: str, run: Run, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    ended, _, err = run(task, *arguments)
    assert ended == status and said in err
    assert "Traceback" not in err and not list(tmp_path.iterdir())
