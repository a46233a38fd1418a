"""In a killable host xgrammar is imported without torch and transformers; elsewhere as usual."""

from __future__ import annotations

import subprocess
import sys

import pytest

IN_A_HOST = """
import sys
from guideway.api import JsonSchema
from guideway.api.bitmask import allocate, unpack
from guideway.api.processes import enter_killable_host
from guideway.json_schema.prober import byte_vocabulary
from guideway_xgrammar import guideway_grammar_strategy

enter_killable_host()
strategy = guideway_grammar_strategy()(byte_vocabulary(), {})
assert not {"torch", "transformers"} & sys.modules.keys()
matcher = strategy.compile(JsonSchema({"enum": [1, 2]})).matcher(frozenset({0, 1}))
bitmask = allocate(1, strategy.vocabulary.logits_width)
matcher.fill_bitmask(bitmask, 0)
allowed = unpack(bitmask, len(strategy.vocabulary.tokens))[0]
print(sorted(strategy.vocabulary.tokens[number] for number, is_allowed in enumerate(allowed) if is_allowed))
assert not {"torch", "transformers"} & sys.modules.keys()

import torch, transformers, xgrammar
assert torch.zeros(2).tolist() == [0, 0] and transformers.GPT2Config().n_layer == 12
try:
    xgrammar.allocate_token_bitmask(1, 8)
except RuntimeError as error:
    print(error)
"""

ELSEWHERE = (
    IN_A_HOST.partition("assert not")[0].replace("enter_killable_host()\n", "\n")
    + """
import xgrammar
assert "torch" in sys.modules
print(xgrammar.allocate_token_bitmask(1, 8).shape)
"""
)


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    ).stdout


def test_a_host_loads_neither_torch_nor_transformers() -> None:
    """Who needs them later gets the real ones, and what xgrammar would do with them says why it does not."""
    allowed, error = run(IN_A_HOST).splitlines()
    assert allowed == "[b'1', b'2']"
    assert "loaded xgrammar without torch and transformers" in error


@pytest.mark.slow
def test_elsewhere_xgrammar_is_whole() -> None:
    assert run(ELSEWHERE) == "torch.Size([1, 1])\n"


@pytest.mark.slow
def test_its_hosts_hold_no_library_of_torch() -> None:
    """Read from the memory maps of the processes that an engine starts."""
    program = """
import os
from pathlib import Path
from guideway import Engine, SamplingParams
from guideway.api import Regex
from tests.support.processes import hosts_of

with Engine("demo", grammar="xgrammar") as engine:
    (result,) = engine.generate(["a"], SamplingParams(constraint=Regex("[ab]{2}"), max_tokens=4))
    print(result.outputs[0].text in {"aa", "ab", "ba", "bb"})
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in hosts_of(os.getpid())]
    print(len(maps) > 1, any("libxgrammar" in text for text in maps), any("libtorch" in text for text in maps))
"""
    assert run(program).split() == ["True", "True", "True", "False"]
