"""The built-in executors as components: workers in this process, or each in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api.hookspecs import hookimpl

if TYPE_CHECKING:
    from guideway.api.provisional import Executor


@hookimpl
def guideway_executor(name: str) -> type[Executor]:
    if name == "process":
        from guideway_engine.executors.process import ProcessExecutor

        return ProcessExecutor
    from guideway_engine.executors.local import LocalExecutor

    return LocalExecutor
