"""A model loaded by a command with few imports equals the model loaded by an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_support.models import FACTORIES
from guideway_engine.runners.transformers.model_loader import load_model

PROGRAM = """
import inspect
import sys
import torch
from guideway_engine.command_line.lean import lean_imports

functions = torch.nn.init.normal_, torch.arange, inspect.getmodule
with lean_imports():
    assert inspect.getmodule(sys._getframe()) is sys.modules["__main__"]
    assert inspect.getmodule(inspect.getsource) is inspect
    from guideway_engine.runners.transformers.model_loader import load_model

    for folder in sys.argv[1:]:
        model = load_model(folder, "float32", "cpu")
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        torch.save({name: tensor.detach().clone() for name, tensor in tensors.items()}, folder + "/loaded.pt")
        print(folder, "sympy" in sys.modules)

assert (torch.nn.init.normal_, torch.arange, inspect.getmodule) == functions
import torch._dynamo
import transformers.models

assert torch._dynamo.is_compiling is not None
assert transformers.models.LlamaModel and transformers.models.llama.LlamaConfig
"""

COLLECTING = """
import gc
from guideway_engine.command_line.lean import lean_imports

begun = []
gc.callbacks.append(lambda phase, info: begun.append(phase))
with lean_imports():
    import sys

    assert "torch" in sys.modules and "transformers" in sys.modules
    assert begun == [], "garbage was looked for meanwhile"
    gc.collect(0)
    assert begun == ["start", "stop"] and gc.isenabled()
    assert gc.get_freeze_count() > 100_000 > len(gc.get_objects())
"""


@pytest.mark.slow
def test_what_a_command_imports_is_not_looked_through_for_garbage() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_model_loaded_with_few_imports_is_the_same(tmp_path: Path) -> None:
    names = ("llama", "gpt2", "qwen3")
    folders = {name: tmp_path / name for name in names}
    for name, folder in folders.items():
        FACTORIES[name](0).save_pretrained(folder)
    command = [sys.executable, "-c", PROGRAM, *map(str, folders.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith("False"), "loading the first, a Llama, imported SymPy"
    for folder in folders.values():
        model = load_model(folder, "float32", "cpu")
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        loaded = torch.load(folder / "loaded.pt")
        assert loaded.keys() == tensors.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
