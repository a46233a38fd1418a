"""Modifier hosts in the engine give the same tokens as modifiers in its own process, however the program is run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from guideway.api import Regex, SamplingParams
from guideway_engine.engine import Engine
from guideway_hosts.modifier import HostedModifier

from tests.support.distributions import install
from tests.support.stages import everyday

PROBES = ("green_list", "gumbel", "guidance", "last_word_a", "chain")
WORD = Regex("[a-z ]{3,30}(x|y)")
MIXED: list[dict[str, Any]] = [
    {"modifiers": {"hello": {"letter": "e"}}},
    {"modifiers": {"chain": {}}, "constraint": WORD},
    {"modifiers": {"chain": {"strength": 3.0}, "green_list": {"key": 3, "delta": 4.0}}},
    {"modifiers": {"gumbel": {}}, "n": 2},
    {"modifiers": {"guidance": {"scale": 1.5, "negative_prompt": [70, 71]}}},
    {"modifiers": {"last_word_a": {"id": 70}}, "max_tokens": 3},
    {"constraint": WORD},
    {},
]


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the probes as components."""
    entries = {f"modifier.{name}": "tests.support.probes" for name in PROBES[:-1]}
    install(tmp_path, "probes", entries | {"modifier.chain": "tests.vllm.probes_in_vllm"})
    monkeypatch.syspath_prepend(str(tmp_path))


def approximately(logprob: float) -> Any:
    """Compare approximately: batches differ, which changes the last digits."""
    return pytest.approx(logprob, abs=1e-3)


def outputs(engine: Engine) -> list[Any]:
    """Return everything that users see of the results."""
    asked = [
        SamplingParams(**({"temperature": 1.0, "seed": 5, "max_tokens": 24, "logprobs": 1} | one)) for one in MIXED
    ]
    results = engine.generate(["Anna Berg is 34 years old."] * len(asked), asked)
    return [
        [
            (
                o.token_ids,
                [approximately(row.logprob) for row in o.logprobs],
                o.reports,
                o.unenforced,
                o.finish_reason,
                str(o.error),
            )
            for o in result.outputs
        ]
        for result in results
    ]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"executor": "process"}, {"num_speculative_tokens": 3}])
def test_the_tokens_stay_also_while_hosts_are_killed(settings: dict[str, Any]) -> None:
    settings = {"grammar": ("llguidance",), "modifiers": ("hello", *PROBES), "max_num_seqs": 16, **settings}
    with Engine("demo", **settings) as engine:
        here = outputs(engine)
    assert {error for result in here for *_, error in result} == {"None"}
    with Engine("demo", modifier_host="process", **settings) as engine:
        homes = [m._room for m in engine._runtime._by_name.values() if isinstance(m, HostedModifier)]
        assert len(homes) == len(PROBES) + 1
        assert outputs(engine) == here
        killed: set[int] = set()
        prepare = engine._runtime.prepare

        def killing(batch: Any) -> Any:
            home = homes[len(killed) % len(homes)]
            if home.host is not None and len(killed) < 3 * len(homes):
                killed.add(home.host.pid)
                os.kill(home.host.pid, signal.SIGKILL)
            return prepare(batch)

        engine._runtime.prepare = killing  # type: ignore[method-assign]
        assert outputs(engine) == here
        assert len(killed) > len(homes)


PROGRAM = """
from guideway import Engine, SamplingParams
engine = Engine("demo", modifiers=("hello",), modifier_host="process", max_num_seqs=2)
asked = SamplingParams(temperature=0.0, max_tokens=8, modifiers={"hello": {"letter": "e", "strength": -80.0}})
print("said", [r.token_ids for r in engine.generate(["Hello"] * 2, asked)], flush=True)
engine.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", everyday([["script.py"], ["-"], ["-i", "-q"]], ["-"]), ids=" ".join)
def test_however_the_program_is_run(tmp_path: Path, arguments: list[str]) -> None:
    """Tests a script without a guard, a program from standard input, and an interactive session."""
    (tmp_path / "script.py").write_text(PROGRAM)
    given = "" if arguments == ["script.py"] else PROGRAM
    done = subprocess.run(
        [sys.executable, *arguments], input=given, capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    (line,) = (line for line in done.stdout.splitlines() if "said" in line and "print" not in line)
    with Engine("demo", modifiers=("hello",), max_num_seqs=2) as engine:
        asked = SamplingParams(temperature=0.0, max_tokens=8, modifiers={"hello": {"letter": "e", "strength": -80.0}})
        here = [result.token_ids for result in engine.generate(["Hello"] * 2, asked)]
    assert line.partition("said ")[2] == str(here)
