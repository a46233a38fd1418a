"""The components ``runner.transformers`` and ``runner.batch_invariant``: run a causal LM of `transformers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api.hookspecs import hookimpl

if TYPE_CHECKING:
    from guideway.api.forward import ModelRunner


@hookimpl
def guideway_model_runner(name: str) -> type[ModelRunner]:
    from guideway_engine.runners.transformers.batch_invariant import BatchInvariantRunner
    from guideway_engine.runners.transformers.model_runner import TransformersRunner

    return {cls.name: cls for cls in (TransformersRunner, BatchInvariantRunner)}[name]
