"""The recipes of docs/changing.md are short, name what exists, and work: three of them are followed here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from guideway.api import ArrayOps
from guideway.api.device import FUSED_OPERATIONS
from guideway.api.steps import FILTERS
from guideway.api.types import CONSTRAINTS
from guideway.pipeline.warping import USES, Filter
from guideway.runtime.constraints.guard.kinds import KINDS
from guideway_conformance.device.operations import OPERATIONS

from tests.docs.blocks import ROOT
from tests.repository.sources import distributions
from tests.support.stages import one_in

PAGE = (ROOT / "docs/changing.md").read_text("utf-8")
RECIPES = dict(re.findall(r"^## (Add [^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
MOST_FILES = 6
PACKAGES = {
    "core/guideway": "guideway",
    "core/guideway-conformance/src/guideway_conformance": "guideway_conformance",
}


NAME = re.compile(r"@?[A-Za-z_]\w*(\.\w+)*")


def steps_of(recipe: str) -> list[list[str]]:
    """Return the names in each numbered step: the file, then names in that file."""
    steps = re.findall(r"^\d+\. (.*?)(?=^\d+\. |\n\n|\Z)", RECIPES[recipe], re.MULTILINE | re.DOTALL)
    return [re.findall(r"`([^`]+)`", step) for step in steps]


def test_there_are_ten() -> None:
    assert len(RECIPES) == 10


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_short_and_names_what_exists(recipe: str) -> None:
    steps = steps_of(recipe)
    assert 0 < len(steps) <= MOST_FILES
    for path, *names in steps:
        text = (ROOT / path).read_text("utf-8") if (ROOT / path).is_file() else ""
        for part in (part for name in names if NAME.fullmatch(name) for part in name.lstrip("@").split(".")):
            assert re.search(rf"\b{part}\b", text), f"{path} has no {part}"
    for path, test in re.findall(r"`([\w./-]+/[\w./-]+?)(?:::(\w+))?`", RECIPES[recipe]):
        assert (ROOT / path).exists(), path
        assert not test or re.search(rf"^(async )?def {test}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), test
    for name, path in re.findall(r"`(\w+)` of\s+`([^`]+)`", RECIPES[recipe]):
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text("utf-8")), f"{path} has no {name}"


def test_every_filter_is_applied() -> None:
    assert set(USES) == set(FILTERS) == {each.name for each in fields(Filter)} - {"rows", "num_candidates"}


def test_every_constraint_has_a_kind() -> None:
    assert tuple(KINDS) == CONSTRAINTS


def test_the_suite_calls_every_operation() -> None:
    named = {name.partition(" of ")[0] for name in OPERATIONS}
    assert {name for name in vars(ArrayOps) if not name.startswith("_")} | set(FUSED_OPERATIONS) <= named


def test_the_tables_have_every_distribution() -> None:
    paths = {f"{folder.relative_to(ROOT)}/README.md" for folder in distributions()}
    for page, prefix in (("README.md", ""), ("docs/index.md", "../")):
        assert paths <= set(re.findall(rf"\]\({prefix}([\w./-]+)\)", (ROOT / page).read_text("utf-8"))), page


# The tests below apply a recipe to a copy of the tree. Everything that the recipe omits has to derive from it.


def follow(recipe: str, edits: dict[str, list[tuple[str, str]]], program: str, tmp_path: Path) -> Any:
    """Apply `edits` to files that the recipe names, run `program` there, and return the JSON that it prints."""
    assert edits.keys() <= {path for path, *_ in steps_of(recipe)}
    for path, package in PACKAGES.items():
        shutil.copytree(ROOT / path, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path, changes in edits.items():
        root = next(root for root in sorted(PACKAGES, reverse=True) if path.startswith(f"{root}/"))
        copy = tmp_path / PACKAGES[root] / path.removeprefix(f"{root}/")
        text = copy.read_text("utf-8")
        for old, new in changes:
            assert text.count(old) == 1, (path, old)
            text = text.replace(old, new)
        copy.write_text(text, encoding="utf-8")
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_sampling_parameter_follows_from_its_row(tmp_path: Path) -> None:
    edits = {
        "core/guideway/api/types.py": [
            (
                "    repetition_penalty: Repetition = 1.0\n",
                '    spread: Share = 1.0\n    """Keep this share."""\n    repetition_penalty: Repetition = 1.0\n',
            )
        ],
        "core/guideway/api/steps.py": [
            (
                "    typical_p: NDArray[np.float32] | None = None\n",
                "    spread: NDArray[np.float32] | None = None\n    typical_p: NDArray[np.float32] | None = None\n",
            )
        ],
    }
    program = """
import json
from argparse import ArgumentParser
from guideway.api import InvalidRequest, SamplingParams
from guideway.api.steps import FILTERS
from guideway.pipeline.padding import dummy_steps
from guideway.runtime.admission.sampling import validated
from guideway_engine.command_line.jobs import add_flags, read_jobs
from guideway_engine.entries import LINE_KEYS

parser = ArgumentParser()
add_flags(parser)
parser.set_defaults(modifier=[])
(job,) = read_jobs(parser.parse_args(["--prompt", "x", "--temperature", "1", "--spread", "0.5"]))
try:
    validated(SamplingParams(spread=2.0), 9)
except InvalidRequest as error:
    refused = [error.field, str(error)]
dummies = sum(step.warp is not None and step.warp.spread is not None for step in dummy_steps(2, 64, {}))
print(json.dumps({
    "help": [line for line in parser.format_help().splitlines() if line.strip().startswith("--spread")],
    "flag": job.params.spread,
    "key": "spread" in LINE_KEYS,
    "refused": refused,
    "dummies": dummies > 0,
    "neutral": float(FILTERS["spread"]),
}))
"""
    found = follow("Add a sampling parameter", edits, program, tmp_path)
    assert [line.split() for line in found.pop("help")] == [
        ["--spread", "X", "Keep", "this", "share", "(default:", "1.0)"]
    ]
    assert found == {
        "flag": 0.5,
        "key": True,
        "refused": ["spread", "spread must be a number above 0 and at most 1, not 2.0"],
        "dummies": True,
        "neutral": 1.0,
    }


def test_a_constraint_kind_follows_from_its_entry(tmp_path: Path) -> None:
    edits = {
        "core/guideway/api/types.py": [
            (
                "CONSTRAINTS: tuple[type[Constraint], ...] = (JsonSchema,",
                "@dataclass(frozen=True)\nclass Digits(Constraint):\n    count: str\n\n    @property\n"
                "    def kind(self) -> str:\n        return 'digits'\n\n    def source(self) -> str:\n"
                "        return _text(self.count, 'count')\n\n\n"
                "CONSTRAINTS: tuple[type[Constraint], ...] = (Digits, JsonSchema,",
            ),
            ('    "FinishReason",\n', '    "Digits",\n    "FinishReason",\n'),
        ],
        "core/guideway/api/__init__.py": [('    "DeviceBackend",\n', '    "DeviceBackend",\n    "Digits",\n')],
        "core/guideway/__init__.py": [('    "Embedding",\n', '    "Digits",\n    "Embedding",\n')],
        "core/guideway/runtime/constraints/guard/kinds.py": [
            ("import Choice, Constraint, Grammar,", "import Choice, Constraint, Digits, Grammar,"),
            (
                "    JsonObject: Kind(",
                "    Digits: Kind(\n"
                "        measure=lambda digits, measures: measures.at('repetition', int(digits.count), 'the count'),\n"
                "        check=lambda digits: check_regex('.{' + digits.count + '}'),\n"
                "        form=JsonForm('digits', lambda digits: digits.count, Digits),\n    ),\n    JsonObject: Kind(",
            ),
        ],
    }
    program = """
import json
from guideway import Digits, Regex
from guideway.api import InvalidRequest, ModifierContext, Need, Request, SamplingParams
from guideway.runtime.runtime import Runtime
from guideway_conformance.reference.strategy import Strategy
from guideway_engine.entries import LINE_KEYS, constraint_of_line
from guideway_engine.command_line.records import written
from tests.support.vocabularies import tiny

class Serving(Strategy):
    kinds = Strategy.kinds | {"digits"}

    def compile(self, constraint):
        return super().compile(Regex("[0-9]{%s}" % constraint.source()))

vocabulary = tiny()
context = ModifierContext(vocabulary=vocabulary, max_num_sequences=4, max_model_len=64)
runtime = Runtime(context, strategies={"reference": Serving(vocabulary, {})}, modifiers=[], offers=frozenset(Need))

def admitted(constraint):
    params = SamplingParams(max_tokens=9, constraint=constraint)
    try:
        admission = runtime.admit(Request(request_id=str(constraint), prompt_token_ids=(1,), params=params))
        admission.wait()
        return sorted(admission.compilation.result()) and "admitted"
    except InvalidRequest as error:
        return str(error)

print(json.dumps({
    "line": "digits" in LINE_KEYS and constraint_of_line("line 1", "digits", "3") == Digits("3"),
    "record": written("demo", Digits("3"), "bounded")["constraint"],
    "good": admitted(Digits("3")),
    "malformed": admitted(Digits("(")),
    "huge": admitted(Digits("100001")),
    "no constraint": admitted(3),
}))
runtime.close()
"""
    found = follow("Add a constraint kind", edits, program, tmp_path)
    assert found["line"]
    assert found["record"] == {"digits": "3"}
    assert found["good"] == "admitted"
    assert "regular expression" in found["malformed"]
    assert "repetition at the count is 100001, the limit 100000" in found["huge"]
    assert found["no constraint"].startswith("constraint must be a Digits, JsonSchema")


@pytest.mark.parametrize("does", one_in(2, ["0 - x", "x"]))
def test_a_device_operation_follows_from_its_definition(does: str, tmp_path: Path) -> None:
    edits = {
        "core/guideway/api/device.py": [
            (
                "    @abstractmethod\n    def cumsum(self,",
                '    def negate(self, x: Array) -> Array:\n        """Elementwise ``-x``, any shape."""\n'
                f"        return {does}\n\n    @abstractmethod\n    def cumsum(self,",
            )
        ],
        "core/guideway-conformance/src/guideway_conformance/device/operations.py": [
            (
                '    "cumsum": Operation(',
                '    "negate": Operation(\n        arguments={"x": _finite},\n'
                '        call=lambda bench, a: _one(bench.ops.negate(a["x"])),\n'
                '        expect=_keeps(lambda _, x: -x),\n        keeps=True,\n    ),\n    "cumsum": Operation(',
            )
        ],
        "core/guideway-conformance/src/guideway_conformance/device/extremes.py": [
            ('    "cumsum": _summed,', '    "cumsum": _summed,\n    "negate": _moved,')
        ],
    }
    program = """
import json
from guideway.devices.numpy.device import NumpyDevice
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import checks
from guideway_conformance.subjects import Settings, perform
from guideway_sim_device.sim.device import SimDevice

found = {}
for device in (NumpyDevice, SimDevice):
    for check in checks("device"):
        if check.id in ("device.operations_do_not_remember", "device.operations_of_all_digits"):
            try:
                perform(check, "positive", DeviceSubject(device, Settings()))
            except AssertionError as error:
                found[f"{device.name} {check.id}"] = str(error)
print(json.dumps(found))
"""
    found = follow("Add a device operation", edits, program, tmp_path)
    assert len(found) == (0 if does == "0 - x" else 4)
    assert all("negate" in message for message in found.values())
