"""Only the parts of the workflows in use are imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from engine_support.encoders import encoder, stored

GRAMMAR_LIBRARIES = ("xgrammar", "llguidance", "outlines", "outlines_core", "lmformatenforcer")
DECODING = (
    *("guideway.runtime", "guideway.pipeline", "guideway.devices", "guideway.vocabulary", "guideway.json_schema"),
    *(
        "guideway_engine.assembly",
        "guideway_engine.decoding.requests",
        "guideway_engine.generation",
        "guideway_engine.prompts",
    ),
    *("guideway_engine.worker", "guideway_engine.runners", "guideway_engine.scheduling.scheduler"),
    *("guideway_engine.scheduling.kv_cache", "guideway_engine.scheduling.sequence", "guideway_engine.scheduling.table"),
)
OF_COMMANDS = ("guideway.json_schema",)
"""Modules that all commands need, because the flags of some contain constraints."""


def loaded_by(program: str, *arguments: str) -> set[str]:
    script = f"import sys\n{program}\nprint('loaded', *sorted(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    return set(output.stdout.splitlines()[-1].split())


def of(loaded: set[str], names: tuple[str, ...]) -> list[str]:
    return sorted(name for name in loaded if any(f"{name}.".startswith(f"{each}.") for each in names))


EMBED = "from guideway import Engine\nwith Engine(sys.argv[1]) as engine: assert engine.embed('w1')[0].error is None"
COMMAND = (
    "from guideway.command_line.program import main\n"
    "assert main(['embed', '--model', sys.argv[1], '--text', 'w1']) == 0"
)
DECODE = "from guideway import Engine\nEngine('demo', grammar=(), max_num_seqs=1, max_model_len=16).close()"


@pytest.mark.slow
@pytest.mark.parametrize("program", [EMBED, COMMAND], ids=["engine", "command"])
def test_embedding_imports_nothing_that_decodes(program: str, tmp_path: Path) -> None:
    loaded = loaded_by(program, str(stored(encoder("Bert"), tmp_path)))
    allowed = OF_COMMANDS if program == COMMAND else ()
    assert of(loaded, GRAMMAR_LIBRARIES) == []
    assert set(of(loaded, DECODING)) - set(of(loaded, allowed)) == set()
    assert "guideway_engine.prefill.driver" in loaded or "guideway_engine.prefill.forward" in loaded


@pytest.mark.slow
def test_decoding_imports_nothing_that_embeds() -> None:
    loaded = loaded_by(DECODE)
    assert "guideway_engine.scheduling.scheduler" in loaded
    assert of(loaded, ("guideway_engine.prefill", "guideway_engine.workflows.serving", *GRAMMAR_LIBRARIES)) == []
