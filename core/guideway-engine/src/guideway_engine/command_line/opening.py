"""Opening an engine for a command, with a spinner and a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from guideway.errors import InvalidConfiguration, PluginError
from guideway.plugins.trial import marked_interrupts

from guideway_engine.command_line import config
from guideway_engine.command_line.lean import lean_imports
from guideway_engine.config import EngineConfig
from guideway_engine.config_sources import Configuration

if TYPE_CHECKING:
    from guideway_engine.engine import Engine

__all__ = ["loading", "open_engine", "progress"]


def open_engine(configuration: Configuration) -> Engine:
    """Open the configured engine. Raises `InvalidConfiguration` and `PluginError` with a note about the source of the
    cause."""
    engine_config = configuration.build(EngineConfig)
    try:
        with marked_interrupts(), lean_imports():
            from guideway_engine.engine import Engine

            return Engine(engine_config)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"guideway's own engine needs {error.name!r}, which is not installed: pip install 'guideway[engine]'",
            field="model",
        ) from error
    except (InvalidConfiguration, PluginError) as error:
        config.add_source(error, configuration)
        raise


@contextmanager
def loading() -> Iterator[None]:
    """Show a spinner on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots", "loading the model", style="status.spinner")
    # standard output is for answers, and rich's Console.status() would capture it
    with Live(spinner, console=Console(stderr=True), refresh_per_second=12.5, transient=True, redirect_stdout=False):
        yield


@contextmanager
def progress(total: int, doing: str) -> Iterator[Callable[[], None]]:
    """Show a progress bar labeled `doing` on standard error, if that is a terminal and `total` is at least 2."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        *Progress.get_default_columns()[:2],
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda: bar.advance(task)
