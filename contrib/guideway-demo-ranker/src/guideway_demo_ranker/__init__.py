"""The demo ranker as a plugin: a cross-encoder that scores how well a text answers a question."""

from __future__ import annotations

from pathlib import Path

from guideway.api import Model, hookimpl

__all__ = ["DemoRanker", "guideway_model"]


class DemoRanker(Model):
    """A BERT with one label, in the format of ``transformers``, inside this package."""

    contract = "1.0"
    name = "demo-ranker"

    def path(self) -> Path:
        return Path(__file__).parent / "weights"


@hookimpl
def guideway_model() -> type[Model]:
    return DemoRanker
