"""Tables of what libraries enforce: a strategy reads its table without loading what measures one."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from importlib import import_module

from guideway.api import JsonSchema

support = import_module(sys.argv[1]).SUPPORT
assert support.support(JsonSchema({"type": "string"})).enforced == {"type"}
measuring = {"guideway.json_schema." + name for name in ("prober", "dialects", "validity")}
assert not measuring & sys.modules.keys()
assert sys.argv[1] == "guideway_outlines.strategy" or "jsonschema" not in sys.modules
"""


@pytest.mark.parametrize("plugin", ["llguidance", "lmfe", "outlines", "xgrammar"])
def test_the_prober_is_loaded_only_to_measure(plugin: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, f"guideway_{plugin}.strategy"], check=True, timeout=120)
