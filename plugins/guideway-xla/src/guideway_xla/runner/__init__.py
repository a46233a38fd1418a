"""The component ``runner.jax``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import hookimpl

if TYPE_CHECKING:
    from guideway.api.forward import ModelRunner


@hookimpl
def guideway_model_runner() -> type[ModelRunner]:
    from guideway_xla.runner.runner import JaxRunner

    return JaxRunner
