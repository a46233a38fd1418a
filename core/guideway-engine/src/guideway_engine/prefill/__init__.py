"""The workflows that only prefill: each text passes through the model once, and nothing is generated.

The components are ``workflow.embed``, ``workflow.rerank`` and ``workflow.classify``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api.hookspecs import hookimpl

if TYPE_CHECKING:
    from guideway.api.workflow import Workflow


@hookimpl
def guideway_workflow(name: str) -> type[Workflow] | None:
    from guideway_engine.prefill.workflows import WORKFLOWS

    return WORKFLOWS.get(name)
