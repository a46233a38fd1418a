"""Answer prompts with a model, under a constraint.

``guideway generate``.
"""
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from guideway.api.types import Completion, FinishReason, GenerationResult
from guideway.errors import InvalidConfiguration, PluginError
from guideway.plugins import PluginIndex, PluginRecord, Plugins, PluginSettings
from guideway.plugins.selection import denial

from guideway_engine.command_line import config, jobs
from guideway_engine.command_line.answers import print_line, print_table, report
from guideway_engine.command_line.jobs import Job, read_jobs
from guideway_engine.command_line.records import written
from guideway_engine.config import EngineConfig
from guideway_engine.config_sources import Configuration, Layer, Setting

if TYPE_CHECKING:
    from guideway_engine.engine import Engine

__all__ = ["add_generate", "installed_strategies"]


def add_generate(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add ``generate``."""
    parser = subparsers.add_parser(
        "generate",
        usage="guideway generate --model NAME (--prompt TEXT | --input FILE) [flags]",
        help="answer prompts with a model, under a constraint",
        description="Answer prompts with a model, under a constraint. Prints a table to a terminal, JSON lines to a "
        "pipe. Exit status: 0 all prompts were answered; 1 some were refused, failed or, under a constraint, cut; "
        "2 wrong usage. Where there is a constraint and no configuration names strategies, all that are installed "
        "are used, guideway's own distributions first.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines also to a terminal")
    parser.add_argument(
        "--record",
        action="store_true",
        help="print JSON lines that hold model, constraint and token ids too: all that guideway inspect needs",
    )
    jobs.add_flags(parser)
    config.add_flags(parser)
    parser.set_defaults(run=_generate)


def _generate(args: Namespace) -> int:
    jobs = read_jobs(args)
    configuration = _configuration(args, jobs)
    if ("model",) not in configuration.settings:
        print(
            "guideway generate: error: no model is configured; give --model, GUIDEWAY_MODEL, or model in a "
            "configuration file (--config, GUIDEWAY_CONFIG)",
            file=sys.stderr,
        )
        return 2
    results: list[GenerationResult | None] = [None] * len(jobs)
    as_json = args.json or args.record or not sys.stdout.isatty()
    printed = 0

    def record(job: Job, result: GenerationResult) -> dict[str, Any] | None:
        if not args.record or result.finish_reason is FinishReason.REFUSED:  # its constraint may be no JSON
            return None
        settings = configuration.build(EngineConfig)
        return written(settings.model, job.params.constraint, settings.whitespace)

    def keep(index: int, result: GenerationResult) -> None:
        """Lines come in the order of the input, each as soon as all before it are there."""
        nonlocal printed
        results[index] = result
        while as_json and printed < len(jobs) and (ready := results[printed]) is not None:
            print_line(printed, jobs[printed], ready, record(jobs[printed], ready))
            printed += 1

    for index, job in enumerate(jobs):
        if job.error is not None:
            refused = Completion(finish_reason=FinishReason.REFUSED, error=job.error)
            keep(index, GenerationResult(request_id=job.id, outputs=(refused,)))
    asked = [index for index, job in enumerate(jobs) if job.error is None]
    try:
        if asked:
            with _loading():
                engine = _engine(configuration)
            # in a terminal the lines themselves show how far it is, and a bar would be drawn into them
            bar = 0 if as_json and sys.stdout.isatty() else len(asked)
            with engine, _progress(bar) as advance:

                def ended(position: int, result: GenerationResult) -> None:
                    advance()
                    keep(asked[position], result)

                engine.generate(
                    [jobs[i].prompt for i in asked],
                    [jobs[i].params for i in asked],
                    tenants=[jobs[i].tenant for i in asked],
                    on_result=ended,
                )
    finally:  # also when interrupted: what has been answered is worth something
        answered = [(job, result) for job, result in zip(jobs, results, strict=True) if result is not None]
        if answered and not as_json:
            print_table(answered)
    return report(answered, in_table=not as_json)


def _configuration(args: Namespace, jobs: list[Job]) -> Configuration:
    """Combine what the sources say; where they say nothing, strategies and modifiers are what the jobs need."""
    sources = config.sources(args)
    plugins = config.configuration(args, sources).plugin_settings()
    modifiers = {name for job in jobs if isinstance(job.params.modifiers, dict) for name in job.params.modifiers}
    modifiers -= {name for name, _ in args.modifier}  # these are added, and come from there
    defaults: Layer = {("modifiers",): Setting(tuple(sorted(modifiers)), "the prompts")}
    if any(job.params.constraint is not None for job in jobs):
        defaults[("grammar",)] = Setting(installed_strategies(plugins), config.INSTALLED)
    return config.configuration(args, sources, defaults)


def _engine(configuration: Configuration) -> Engine:
    engine_config = configuration.build(EngineConfig)
    try:
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


def installed_strategies(settings: PluginSettings) -> tuple[str, ...]:
    """Every grammar strategy that is installed and may run, and can: of guideway's own distributions first, the slow
    reference last."""
    index = PluginIndex.scan()
    records = [r for r in index.records if r.kind == "grammar" and denial(settings, r) is None]
    claimed = [record.name for record in records]
    plugins = Plugins(index, settings)

    def rank(distribution: str) -> int:
        return 2 if distribution == "guideway" else 0 if distribution.startswith("guideway-") else 1

    addresses = [
        (rank(r.distribution), r.name if claimed.count(r.name) == 1 else f"{r.distribution}/{r.name}")
        for r in records
        if _can_run(plugins, r)
    ]
    return tuple(address for _, address in sorted(addresses))


def _can_run(plugins: Plugins, record: PluginRecord) -> bool:
    """Return whether a strategy can be built here. One that is broken counts: its error is to be seen."""
    try:
        return plugins.load("grammar", f"{record.distribution}/{record.name}").available() is None
    except PluginError:
        return True


@contextmanager
def _loading() -> Iterator[None]:
    """A spinner on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots", "loading the model", style="status.spinner")
    # standard output holds answers: not for rich, whose Console.status() would take it over
    with Live(spinner, console=Console(stderr=True), refresh_per_second=12.5, transient=True, redirect_stdout=False):
        yield


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, if that is a terminal and there is something to wait for."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task("generating", total=total)
        yield lambda: progress.advance(task)
