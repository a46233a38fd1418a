"""The workflow that generates text token by token: the component ``workflow.decode``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api.hookspecs import hookimpl

if TYPE_CHECKING:
    from guideway.api.workflow import Workflow


@hookimpl
def guideway_workflow() -> type[Workflow]:
    from guideway_engine.decoding.workflow import DecodeWorkflow

    return DecodeWorkflow
