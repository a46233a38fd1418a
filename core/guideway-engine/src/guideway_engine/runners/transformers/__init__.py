"""The component ``runner.transformers``: runs a causal language model of `transformers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api.hookspecs import hookimpl

if TYPE_CHECKING:
    from guideway.api.forward import ModelRunner


@hookimpl
def guideway_model_runner() -> type[ModelRunner]:
    from guideway_engine.runners.transformers.model_runner import TransformersRunner

    return TransformersRunner
