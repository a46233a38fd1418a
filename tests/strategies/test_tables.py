"""The support tables that plugins ship, and that a strategy reads its table without loading what measures one."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from guideway.json_schema.support import SupportTable

from tests.support.stages import everyday

PLUGINS = ("llguidance", "lmfe", "xgrammar", "outlines")
PROGRAM = """
import sys
from importlib import import_module

from guideway.api import JsonSchema

measuring = {"guideway.json_schema." + name for name in ("prober", "dialects", "validity")}
for plugin in sys.argv[1:]:
    if plugin != "outlines":  # which judges values itself
        assert "jsonschema" not in sys.modules
    support = import_module(f"guideway_{plugin}.strategy").SUPPORT
    assert support.support(JsonSchema({"type": "string"})).enforced == {"type"}
    assert not measuring & sys.modules.keys()
"""


@pytest.mark.parametrize("plugins", everyday(["llguidance outlines", "lmfe xgrammar"], "llguidance outlines"))
def test_the_prober_is_loaded_only_to_measure(plugins: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, *plugins.split()], check=True, timeout=120)


@pytest.fixture(params=PLUGINS)
def module(request: pytest.FixtureRequest) -> str:
    return f"guideway_{request.param}.strategy"


def test_the_installed_version_has_a_table(module: str) -> None:
    table: SupportTable = import_module(module).SUPPORT
    assert table.library.split()[1] in table.committed(), f"a new version: run python -m {module[:-9]}.probe"


@pytest.mark.slow
def test_a_version_without_a_table_is_measured_and_the_table_is_what_it_does(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: SupportTable = import_module(module).SUPPORT
    table = SupportTable(committed.distribution, module.partition(".")[0], committed.measure)
    monkeypatch.setattr(table, "committed", dict)
    assert table.installed() == committed.committed()[committed.library.split()[1]]
