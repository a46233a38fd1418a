"""The component ``executor.local``: the worker runs in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api.hookspecs import hookimpl

if TYPE_CHECKING:
    from guideway.api.provisional import Executor


@hookimpl
def guideway_executor() -> type[Executor]:
    from guideway_engine.executors.local.executor import LocalExecutor

    return LocalExecutor
