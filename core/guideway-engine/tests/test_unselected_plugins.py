"""Installed plugins that are not selected neither block nor change anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_support.encoders import encoder, stored
from guideway.command_line.commands import GROUP, installed
from guideway.plugins import PluginIndex
from guideway_demo_model import DemoModel

from tests.support.distributions import install
from tests.support.stages import everyday

ENDS = "import os\nos._exit(99)\n"
"""A module that must not be imported."""

PROGRAM = """
import sys
from guideway.command_line.program import main
from guideway import Engine, JsonSchema, SamplingParams
demo, bert, schema = sys.argv[1:]
common = ["--model", demo, "--prompt", "x", "--json", "--max-tokens", "20"]
statuses = [
    main(["generate", *common]),
    main(["generate", *common, "--regex", "[ab]{4}"]),
    main(["generate", *common, "--schema", schema]),
    main(["inspect", "--model", demo, "--regex", "a+", "--text", "aa", "--json"]),
    main(["embed", "--model", bert, "--text", "w1 w2", "--json"]),
    main(["config", "show", "--json"]),
]
with Engine(bert) as engine:
    print(engine.workflow, engine.embed(["w3"])[0].num_tokens)
print(statuses)
"""


def rivals(folder: Path) -> None:
    """Install distributions that claim the names of all our components."""
    here = {f"{record.kind}.{record.name}" for record in PluginIndex.scan().records}
    install(folder, "rival", dict.fromkeys(sorted(here), "rival_that_ends"))
    install(folder, "aaa-rival", dict.fromkeys(sorted(here), "rival_that_ends"))
    install(folder, "guideway-aaa", {"grammar.aaa": "rival_that_ends", "device.aaa": "rival_that_ends"})
    install(folder, "guideway-commands", dict.fromkeys(installed(), "rival_that_ends:add"), group=GROUP)
    (folder / "rival_that_ends.py").write_text(ENDS, encoding="utf-8")


def broken(folder: Path) -> None:
    """Install distributions with broken metadata. Some also break `import torch`, which reads all of it."""
    folder.mkdir()
    (folder / "rival_that_ends.py").write_text(ENDS, encoding="utf-8")
    found = {
        "no_name": (b"Metadata-Version: 2.1\nVersion: 1.0\n", b"[guideway.v1]\ndevice.torch = rival_that_ends\n"),
        "not_text": (b"\xff\xfe\x00", b"[guideway.v1]\n\xff = \xff\n"),
        "no_form": (b"Name: no-form\nVersion: 1\n", b"[guideway.v1\ndevice.torch\n=\n[guideway.commands]\n= \n"),
        "pretends": (b"Name: guideway\nVersion: 99\n", b"[guideway.v1]\ndevice.torch = rival_that_ends\n"),
        "aaa": (b"Name: guideway-engine\nVersion: 99\n", b"[guideway.v1]\nexecutor.local = rival_that_ends\n"),
        "bad_url": (b"Name: bad-url\nVersion: 1\n", b"[guideway.v1]\ndevice.torch = rival_that_ends\n"),
        "empty": (b"", b"[guideway.v1]\ndevice.torch = rival_that_ends\n"),
    }
    for name, (metadata, entries) in found.items():
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_bytes(metadata)
        (info / "entry_points.txt").write_bytes(entries)
        if name == "bad_url":
            (info / "direct_url.json").write_text('{"editable"', encoding="utf-8")
    (folder / "a_file-1.0.dist-info").write_text("", encoding="utf-8")


@pytest.mark.slow
def test_installed_rivals_of_every_name_change_nothing(tmp_path: Path) -> None:
    rivals(tmp_path / "installed")
    bert = stored(encoder("Bert"), tmp_path / "bert")
    schema = json.dumps({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "additionalProperties": False})
    command = [sys.executable, "-c", PROGRAM, str(DemoModel().path()), str(bert), schema]
    came = []
    for path in ([], [str(tmp_path / "installed")]):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        came.append((done.returncode, done.stdout, done.stderr))
    assert came[0][0] == came[1][0] == 0, came[1][2]
    without, beside = ([line for line in out.splitlines() if "_us" not in line] for _, out, _ in came)  # times differ
    assert without == beside
    assert came[0][1].splitlines()[-1] == "[0, 0, 0, 0, 0, 0]"


COMMANDS = [["config", "show"], ["plugins", "list"], ["generate", "--help"], ["help"]]


@pytest.mark.parametrize("command", everyday(COMMANDS, ["generate", "--help"]), ids=" ".join)
def test_broken_metadata_changes_nothing(command: list[str], tmp_path: Path) -> None:
    broken(tmp_path / "installed")
    came = []
    for path in ("", str(tmp_path / "installed")):
        environment = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-m", "guideway", *command], env=environment, capture_output=True, text=True, check=False
        )
        came.append((done.returncode, done.stdout))
    assert came[0] == came[1]


@pytest.mark.parametrize(
    "command", everyday(["generate", "conform", "plugins", "config", "inspect", "embed", "serve"], "plugins", "serve")
)
def test_a_rival_of_a_command_of_ours_is_not_imported(command: str, tmp_path: Path) -> None:
    rivals(tmp_path / "installed")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    asked = [sys.executable, "-m", "guideway", command, "--help"]
    done = subprocess.run(
        asked,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()[:3]) == (0, ["usage:", "guideway", command])
