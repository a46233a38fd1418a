"""Allowed imports, forbidden names in the library, and modules that importing guideway loads."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import guideway
import pytest

from tests.repository.sources import (
    CORE,
    ROOT,
    circles,
    core_modules,
    distributions,
    import_graph,
    imports,
    module_name,
    words_in_code,
)

MIDDLE = {"json_schema", "vocabulary", "devices", "plugins", "pipeline"}
MAY_IMPORT = {
    "errors": set(),
    "version": set(),
    "files": {"errors"},
    "api": {"errors"},
    **{part: {"errors", "api", "version"} for part in MIDDLE},
    "plugins": {"errors", "files", "api", "version"},
    "runtime": {"errors", "api", "version", *MIDDLE},
    "objects": {"errors", "api", "json_schema"},
    "command_line": {"errors", "files", "api", "version", "runtime", *MIDDLE},
    "__main__": {"command_line"},
    "__init__": {"errors", "api", "version", "plugins"},
    "conformance": set(),
}
"""The parts of the library, and the parts that each may import."""

SHIMS = {
    "guideway": "guideway_engine",
    "guideway.conformance": "guideway_conformance",
    "guideway.runtime.plan": "guideway_hosts",
}
"""Modules of the library that may import another distribution: for type checkers, for hints to install it, and to use
it where it is installed."""

DEVICES = {"cuda", "rocm", "tpu", "xla", "npu", "xpu", "mps", "hpu", "neuron", "gaudi", "ascend", "metal", "vulkan"}
GRAMMAR_LIBRARIES = {"xgrammar", "llguidance", "outlines", "lmfe", "formatron", "kbnf", "lmformatenforcer"}

HOSTS = {"guideway-engine", "guideway-vllm"}
"""Distributions that use the runtime, and may import all of the library and the killable hosts."""

KILLABLE = "guideway-hosts"
"""The distribution of killable hosts, which may import all of the library."""

SUITE = "guideway-conformance"
"""The distribution that may import all of the library, but no host."""

APPLICATIONS = {"guideway-demo-model", "guideway-demo-ranker"}
"""Plugins that are also programs: demo models are evaluated with the engine. Like applications, they may use the names
of `guideway` itself, but not its modules."""

FOR_PLUGINS = {"guideway.api", "guideway.json_schema", "guideway.devices"}
FOR_PLUGIN_TESTS = FOR_PLUGINS | {"guideway_conformance", "guideway.conformance"}


def part_of(module: str) -> str:
    """Return the part of a module: ``api`` for ``guideway.api.types``, ``__init__`` for guideway itself. A name that
    `guideway` re-exports, such as ``guideway.Engine``, belongs to the part or distribution that defines it."""
    if "." not in module:
        return "__init__"
    part = module.split(".")[1]
    if part in guideway.__all__:
        home = next((m for m in guideway._MODULES if part in import_module(m).__all__), "guideway.api")
        return home.split(".")[1] if home.startswith("guideway.") else home.partition(".")[0]
    return part


def against_the_arrows(module: str, source: str, *, is_package: bool = False) -> list[str]:
    here = part_of(module)
    wrong = []
    for line, name in imports(source, module, is_package=is_package):
        top = name.partition(".")[0]
        if top.startswith("guideway_") and SHIMS.get(module) != top:
            wrong.append(f"{module}:{line} imports {name}, of another distribution")
        if top != "guideway" or name in ("guideway", "guideway.__version__"):
            continue
        if part_of(name) not in {here, *MAY_IMPORT[here]}:
            wrong.append(f"{module}:{line} imports {name}")
    return wrong


def test_imports_follow_the_arrows() -> None:
    wrong = []
    for path in core_modules():
        wrong += against_the_arrows(module_name(path), path.read_text("utf-8"), is_package=path.name == "__init__.py")
    assert not wrong, "\n".join(wrong)


def test_every_part_of_core_has_its_arrows() -> None:
    parts = {path.stem if path.is_file() else path.name for path in CORE.iterdir()} - {"py", "__pycache__"}
    assert parts <= {*MAY_IMPORT, "py.typed".removesuffix(".typed")}, "add the new part to MAY_IMPORT"


def test_structure_says_what_each_part_may_import() -> None:
    table = (ROOT / "docs" / "structure.md").read_text("utf-8").split("| folder | contents | imports |")[1]
    said = re.findall(r"^\| `(\w+)/`.* \| (.+) \|$", table.split("\n\n")[0], re.MULTILINE)
    allowed = {part: may - {"version"} for part, may in MAY_IMPORT.items() if (CORE / part).is_dir()}
    allowed["guideway"] = MAY_IMPORT["__init__"] - {"version"}
    assert {part: set(names.split(", ")) for part, names in said} == allowed


@pytest.mark.parametrize(
    "source",
    [
        "from guideway_engine.engine import Engine",
        "def f():\n    import guideway_engine",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from guideway import runtime",
        "from ..plugins import index",
        "from .. import plugins",
        "from guideway import Engine",
        "import guideway.command_line.program",
        "from importlib import import_module\nimport_module('guideway_engine.engine')",
    ],
)
def test_an_import_against_the_arrows_is_seen(source: str) -> None:
    assert len(against_the_arrows("guideway.pipeline.pipeline", source)) == 1


def test_imports_along_the_arrows_pass() -> None:
    source = (
        "import numpy\nfrom guideway.api import Payload\nfrom guideway.pipeline.view import View\nfrom . import view"
    )
    assert against_the_arrows("guideway.pipeline.pipeline", source) == []


def test_torch_is_imported_only_where_devices_are() -> None:
    wrong = [
        f"{module_name(path)}:{line}"
        for path in core_modules()
        for line, name in imports(path.read_text("utf-8"))
        if name.split(".")[0] == "torch" and part_of(module_name(path)) != "devices"
    ]
    assert not wrong, f"in the library torch may be imported in devices only: {wrong}"


def test_no_module_imports_one_that_imports_it() -> None:
    """Imports inside functions and under TYPE_CHECKING count."""
    graph = import_graph(ROOT)
    assert {"guideway.errors", "guideway_engine.engine", "guideway_conformance.runner", "guideway_cpu"} <= graph.keys()
    assert circles(graph) == []


def test_a_circle_is_seen() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set(), "e": {"e", "a"}}
    assert circles(graph) == [["a", "b", "c"], ["e"]]


def named(source: str, words: set[str]) -> list[str]:
    return [f"line {line}: {word}" for line, word in words_in_code(source) if word in words]


def test_the_library_names_no_device_and_no_grammar_library() -> None:
    wrong = {
        module_name(path): found
        for path in core_modules()
        if part_of(module_name(path)) != "devices"
        if (found := named(path.read_text("utf-8"), DEVICES | GRAMMAR_LIBRARIES))
    }
    assert not wrong, f"what is special about a device or library belongs into its plugin: {wrong}"


@pytest.mark.parametrize(
    "source",
    [
        "if name == 'xgrammar': pass",
        "def is_tpu(): pass",
        "class CudaBackend: pass",
        "x = device.isXLA",
        "f(cuda=1)",
        "import llguidance",
        "f'cuda:{index}'",
        "from a import b as tpu_b",
    ],
)
def test_a_forbidden_name_is_seen(source: str) -> None:
    assert len(named(source, DEVICES | GRAMMAR_LIBRARIES)) == 1


@pytest.mark.parametrize(
    "source",
    [
        '"""Like xgrammar."""',
        'x = 1\n"""In cuda\'s layout."""',
        "# on a tpu",
        "barracuda = 'output'",
        "def relaxlanes(): pass",
    ],
)
def test_prose_and_longer_words_are_allowed(source: str) -> None:
    assert named(source, DEVICES | GRAMMAR_LIBRARIES) == []


@pytest.mark.parametrize("folder", distributions(), ids=lambda folder: folder.name)
def test_a_distribution_imports_only_what_it_may(folder: Path) -> None:
    package = folder.name.replace("-", "_")
    allowed = set(FOR_PLUGINS)
    if folder.name in (*HOSTS, SUITE, KILLABLE):
        allowed = {"guideway"}
    if folder.name in HOSTS:
        allowed |= {"guideway_hosts"}
    if folder.name in APPLICATIONS:
        allowed |= {f"guideway.{name}" for name in guideway.__all__}
    wrong = []
    for path in sorted((folder / "src").rglob("*.py")):
        for line, name in imports(path.read_text("utf-8")):
            top = name.partition(".")[0]
            ours = top == "guideway" or top.startswith("guideway_")
            if ours and top != package and not any(f"{name}.".startswith(f"{root}.") for root in allowed):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


PLUGINS = [folder for folder in distributions() if folder.parent.name != "core" and folder.name not in HOSTS]


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_the_tests_of_a_plugin_use_what_a_stranger_has(folder: Path) -> None:
    allowed = FOR_PLUGIN_TESTS | {f"guideway.{name}" for name in guideway.__all__ if folder.name in APPLICATIONS}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((folder / "tests").rglob("*.py"))
        for line, name in imports(path.read_text("utf-8"))
        if name.partition(".")[0] in ("guideway", "guideway_engine", "guideway_conformance")
        and not any(f"{name}.".startswith(f"{root}.") for root in allowed)
    ]
    assert not wrong, "\n".join(wrong)


def loaded_by(program: str) -> set[str]:
    """Return the top-level modules outside the standard library that `program` loads in a new interpreter."""
    script = (
        "import sys\nbefore = set(sys.modules)\n"
        f"{program}\n"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(output.stdout.split())


def test_importing_guideway_and_its_plugin_system_is_light() -> None:
    program = "import guideway, guideway.plugins\nfor name in guideway.plugins.__all__: getattr(guideway.plugins, name)"
    loaded = loaded_by(program)
    assert {"guideway", "importlib_metadata"} <= loaded
    assert loaded <= {"guideway", "importlib_metadata", "lazy_importer", "pluggy", "zipp"}


def test_the_api_needs_only_numpy_and_pluggy() -> None:
    loaded = loaded_by("import guideway.api\nfor name in guideway.api.__all__: getattr(guideway.api, name)")
    assert loaded == {"guideway", "numpy", "pluggy"}


def test_the_process_that_hosts_are_forked_from_loads_no_more_than_they_need() -> None:
    loaded = loaded_by("import guideway_hosts.serving")
    assert {"guideway", "guideway_hosts", "numpy"} <= loaded
    assert loaded <= {"guideway", "guideway_hosts", "importlib_metadata", "lazy_importer", "numpy", "pluggy", "zipp"}


def test_a_worker_of_vllm_loads_nothing_of_the_schedulers_half() -> None:
    program = "import sys, guideway_vllm.worker\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name for name in run.stdout.split() if name.startswith("guideway.")}
    assert "guideway.pipeline" in loaded
    assert not [name for name in loaded if name.startswith("guideway.json_schema")]
    runtime = {name for name in loaded if name.startswith("guideway.runtime.")}
    assert runtime == {"guideway.runtime.constraints", "guideway.runtime.constraints.worker_half"}


def test_every_public_name_is_there() -> None:
    program = "import guideway\nfor name in guideway.__all__: getattr(guideway, name)\nassert sorted(guideway.__all__)"
    assert "guideway" in loaded_by(program)
