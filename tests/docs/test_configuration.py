"""The examples of the page on configuration run, and it lists every key with its default."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest
from guideway import EngineConfig
from guideway.errors import InvalidConfiguration
from guideway_engine.config_sources import KEYS

from tests.docs.blocks import ROOT, code_blocks
from tests.docs.follow import Followed, follow

PAGE = "docs/configuration.md"


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    """Follow the page as a reader with a policy for its validator."""
    folder = tmp_path_factory.mktemp("configuration")
    policy = folder / "policy.toml"
    policy.write_text("[tenants.acme]\nmax_tokens = 20", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUIDEWAY_TENANT_POLICY", str(policy))
        yield follow(PAGE, folder)


def test_the_file_sets_every_key(followed: Followed) -> None:
    config = EngineConfig.load(followed.folder / "guideway.toml", environ={})
    assert config.max_num_seqs == 16
    (file,) = code_blocks(PAGE, "toml")
    assert set(re.findall(r"^(\w+) = ", file, re.MULTILINE)) == {key[-1] for key in KEYS} | {"limits"}


def test_the_table_has_every_key_and_its_default() -> None:
    page = (ROOT / PAGE).read_text("utf-8")
    defaults = dict(re.findall(r"^\| `([a-z_.]+)` \|([^|]*)\|", page, re.MULTILINE))
    for key, field in KEYS.items():
        default: Any = None if field.default is MISSING else field.default
        written = "" if field.default is MISSING else "none" if default is None else json.dumps(default)
        assert defaults.pop(".".join(key)).strip(" `") == written
    assert not defaults


def test_generate_does_what_is_configured(followed: Followed) -> None:
    line = json.loads(followed.said("guideway generate"))
    assert line["error"] is None
    assert 0 < line["num_tokens"] <= 20
    assert "e" not in line["text"]


def test_the_python_example_shows_what_wins(followed: Followed) -> None:
    first, second = followed.said("EngineConfig.load").splitlines()
    assert first == "8 64 ('tenant_policy',)"  # the first command has exported GUIDEWAY_MAX_NUM_SEQS
    assert second in ("stop None", "length None")


@pytest.mark.parametrize(
    ("file", "environ"),
    [
        ("max_num_seq = 8", {}),
        ("max_num_seqs = '8'", {}),
        ("", {"GUIDEWAY_MAX_NUM_SEQS": "many"}),
        ("[plugins]\nenabel = []", {}),
        ("model 'demo'", {}),
    ],
)
def test_mistakes_are_told_as_the_page_has_it(
    file: str, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("guideway.toml").write_text(file, encoding="utf-8")
    with pytest.raises(InvalidConfiguration) as caught:
        EngineConfig.load("guideway.toml", environ=environ)
    assert any(str(caught.value).startswith(line) for line in code_blocks(PAGE, "text")[-1].splitlines()), caught.value
