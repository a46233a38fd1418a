"""Answer prompts with a model, under a constraint.

``guideway generate``.
"""
# ruff: noqa: T201 - commands print

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from guideway.api.types import Completion, Constraint, FinishReason, GenerationResult
from guideway.command_line.quiet import quiet_libraries
from guideway.command_line.signals import interrupted_by_sigterm, status_of
from guideway.errors import InvalidRequest, PluginError, UnsupportedGrammar, printable
from guideway.plugins import PluginIndex, PluginSettings
from guideway.plugins.configuration import component_name
from guideway.plugins.operator_files import is_file, located
from guideway.plugins.selection import resolve

from guideway_engine.command_line import config, jobs
from guideway_engine.command_line.answers import Answers, print_object, print_table, report
from guideway_engine.command_line.digests import of_jobs
from guideway_engine.command_line.jobs import Job, read_jobs, wrong_flag
from guideway_engine.command_line.lines import Lines, check_ids
from guideway_engine.command_line.opening import loading, open_engine, progress
from guideway_engine.command_line.reading import check_output
from guideway_engine.command_line.records import written
from guideway_engine.config import EngineConfig
from guideway_engine.config_sources import Configuration, Layer, Setting
from guideway_engine.strategies import installed_strategies, of_installed, serving

__all__ = ["add_generate"]

MOST_ADVICE = 3
"""Maximum number of refused constraints for which other strategies are listed."""


def add_generate(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the command ``generate``."""
    parser = subparsers.add_parser(
        "generate",
        usage="guideway generate --model NAME (--prompt TEXT | --input FILE) [flags]",
        help="answer prompts with a model, under a constraint",
        description="Answer prompts with a model, under a constraint. Prints a table to a terminal, or the JSON object "
        "of a single answer, and JSON lines to a pipe. Exit status: 0 all prompts were answered; 1 some were refused, "
        "failed or, under a constraint, cut, or nothing could be asked; 2 wrong usage, or an invalid value on the "
        "command line; 130 interrupted, and 143 ended by SIGTERM, both after the answers that were ready were written. "
        "Where there is a constraint and no configuration names strategies, guideway's own that are installed can be "
        "used.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON also to a terminal")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write JSON lines to this file, which must be new, unless --resume is given",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the file of --output: leave its answers as they are, by 'id', and ask again what was refused, "
        "failed or torn; an error if an answer is to another prompt or made with other settings",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="print JSON that holds model, constraint and token ids too: all that guideway inspect needs",
    )
    jobs.add_flags(parser)
    config.add_flags(parser)
    parser.set_defaults(run=_generate)


def _generate(args: Namespace) -> int:
    if args.resume and args.output is None:
        print("guideway generate: error: --resume goes on with a file: name it with --output", file=sys.stderr)
        return 2
    check_output(args, "output")
    jobs = read_jobs(args)
    if wrong := wrong_flag(args, jobs):
        print(f"guideway generate: error: {wrong}", file=sys.stderr)
        return 2
    with quiet_libraries(), interrupted_by_sigterm():
        return _run(args, jobs)


def _run(args: Namespace, jobs: list[Job]) -> int:
    configuration, more = _configuration(args, jobs)
    if ("model",) not in configuration.settings:
        print(
            "guideway generate: error: no model is configured; give --model, GUIDEWAY_MODEL, or model in a "
            "configuration file (--config, GUIDEWAY_CONFIG)",
            file=sys.stderr,
        )
        return 2
    digests: dict[str, str] = {}
    if args.output is not None:
        check_ids(jobs)
        digests = of_jobs(jobs, configuration, (args.input, args.output))

    def record(job: Job) -> dict[str, Any]:
        settings = configuration.build(EngineConfig)
        return written(settings.model, job.params.constraint, settings.whitespace)

    in_table = args.output is None and not args.json and not args.record and sys.stdout.isatty()
    with Lines(args.output, resume=args.resume, digests=digests) as lines:
        answers = Answers(jobs, None if in_table else lines, lines.done, record if args.record else None)
        for index, job in enumerate(jobs):
            if job.error is not None and job.id not in lines.done:
                refused = Completion(finish_reason=FinishReason.REFUSED, error=job.error)
                answers.keep(index, GenerationResult(request_id=job.id, outputs=(refused,)))
        asked = [index for index, job in enumerate(jobs) if job.error is None and job.id not in lines.done]
        interrupt: KeyboardInterrupt | None = None
        try:
            if asked:
                bar = in_table or not lines.may_be_seen
                again = _answer(configuration, answers, asked, bar=bar, held=more is not None)
                if again and more is not None:
                    _answer(more(), answers, again, bar=False, held=False)
        except KeyboardInterrupt as error:
            interrupt = error
        finally:
            answers.write_rest()
        if in_table and answers.ended:
            in_table = not print_object(answers.ended)
            if in_table:
                print_table(answers.ended)
        status = report(answers.ended, in_table=in_table)
        if interrupt is None and configuration.source_of("grammar") not in (None, config.INSTALLED):
            _say_who_would(configuration, answers)
        if args.prompt is None or interrupt:
            print(answers.summary(interrupted=interrupt is not None), file=sys.stderr)
        return status_of(interrupt) if interrupt else status


def _answer(configuration: Configuration, answers: Answers, asked: list[int], *, bar: bool, held: bool) -> list[int]:
    """Answer the jobs of these indices. With `held`, return the indices of those that no strategy could compile."""
    again: list[int] = []
    is_default = configuration.source_of("grammar") == config.INSTALLED
    with loading():
        engine = open_engine(configuration)
    with engine, progress(len(asked) if bar else 0, "generating") as advance:
        answers.begin()

        def ended(position: int, result: GenerationResult) -> None:
            if held and isinstance(result.outputs[0].error, UnsupportedGrammar):
                again.append(asked[position])
                return
            advance()
            answers.keep(asked[position], _worded(result, configuration) if is_default else result)

        try:
            engine.generate(
                [answers.jobs[i].prompt for i in asked],
                [answers.jobs[i].params for i in asked],
                tenants=[answers.jobs[i].tenant for i in asked],
                on_result=ended,
            )
        except KeyboardInterrupt:  # write before the engine closes, which takes time
            answers.write_rest()
            raise
    return again


def _worded(result: GenerationResult, configuration: Configuration) -> GenerationResult:
    """Return the result with its error worded for users who configured no strategies."""
    first, *rest = result.outputs
    if not isinstance(first.error, UnsupportedGrammar):
        return result
    error = of_installed(first.error, configuration.plugin_settings())
    return replace(result, outputs=(replace(first, error=error), *rest))


def _say_who_would(configuration: Configuration, answers: Answers) -> None:
    """List the installed strategies for constraints that the configured ones refuse."""
    refused: dict[tuple[str, str], tuple[Job, Constraint, UnsupportedGrammar]] = {}
    for job, result in answers.ended:
        constraint, error = job.params.constraint, result.outputs[0].error
        if isinstance(error, UnsupportedGrammar) and isinstance(constraint, Constraint):
            refused.setdefault((constraint.kind, constraint.source()), (job, constraint, error))
    built = configuration.build(EngineConfig)
    for job, constraint, error in list(refused.values())[:MOST_ADVICE]:
        in_full = "refuse" in (job.params.on_unenforced, built.on_unenforced)
        if names := serving(error, built.plugins, built.options, constraint, built.grammar or (), in_full=in_full):
            said = f"other strategies, installed, say that they take it: {', '.join(names)}; choose with --strategy"
            print(printable(f"guideway: prompt {job.id}: {said}"), file=sys.stderr)


def _take_modifiers(jobs: list[Job], settings: PluginSettings, given: Collection[str]) -> set[str]:
    """Return the names of the modifiers in lines of input, except those `given` as flags. A line with the name of a
    modifier that may not run gets an error, so that it alone is refused."""
    usable: set[str] = set()
    for index, job in enumerate(jobs):
        names = job.params.modifiers if isinstance(job.params.modifiers, dict) else {}
        try:
            for name in names.keys() - usable - set(given):
                if is_file(name):  # a line of input names no file of code: admission refuses it
                    continue
                resolve(PluginIndex.scan(), settings, "modifier", name)
                usable.add(name)
        except PluginError as error:
            jobs[index] = replace(job, error=InvalidRequest(f"line {job.line}: {error}", field="modifiers"))
    return usable


def _configuration(args: Namespace, jobs: list[Job]) -> tuple[Configuration, Callable[[], Configuration] | None]:
    """Return the merged configuration, with strategies and modifiers chosen for the jobs if no source selects them. If
    that leaves out installed strategies, also return a function that builds the same configuration with all of
    guideway's own, for constraints that the chosen ones cannot compile."""
    sources = config.sources(args)
    said = config.configuration(args, sources)
    defaults: Layer = {}
    if ("modifiers",) not in Configuration.of(sources).settings:
        given = [component_name("modifier", located(name)) for name, _ in args.modifier]
        modifiers = _take_modifiers(jobs, said.plugin_settings(), given)
        defaults["modifiers",] = Setting(tuple(sorted(modifiers)), config.OF_PROMPTS)
    constraints = [job.params.constraint for job in jobs if job.params.constraint is not None]
    if ("grammar",) in said.settings:
        return config.configuration(args, sources, defaults), None

    def with_strategies(names: tuple[str, ...]) -> Configuration:
        return config.configuration(args, sources, defaults | {("grammar",): Setting(names, config.INSTALLED)})

    if not constraints:
        return with_strategies(()), None
    plugins, options = said.plugin_settings(), said.options()
    names, are_some = installed_strategies(plugins, options, constraints)
    if not are_some:
        return with_strategies(names), None
    return with_strategies(names), lambda: with_strategies(installed_strategies(plugins, options)[0])
