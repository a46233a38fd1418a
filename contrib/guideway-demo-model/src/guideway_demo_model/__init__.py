"""The demo model as a plugin: a model of 2.7 million parameters that turns a text into JSON."""

from __future__ import annotations

from pathlib import Path

from guideway.api import Model, hookimpl

__all__ = ["DemoModel", "guideway_model"]


class DemoModel(Model):
    """A Llama in the format of ``transformers``, inside this package."""

    contract = "1.0"
    name = "demo"

    def path(self) -> Path:
        return Path(__file__).parent / "weights"


@hookimpl
def guideway_model() -> type[Model]:
    return DemoModel
