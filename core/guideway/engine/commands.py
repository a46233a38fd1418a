"""``guideway generate``."""
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from guideway.api.errors import GuidewayError, InvalidConfiguration, InvalidRequest, PluginError
from guideway.api.types import FinishReason, GenerationResult
from guideway.engine.jobs import LINE_KEYS, Job, named_options, read_jobs
from guideway.plugins import PluginIndex, PluginSettings

if TYPE_CHECKING:
    from guideway.engine.engine import Engine

__all__ = ["add_generate"]

MAX_TOKENS = 256


def add_generate(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add ``generate``."""
    parser = subparsers.add_parser(
        "generate",
        help="answer prompts with a model, under a constraint",
        description="Answer prompts with a model, under a constraint. Prints a table to a terminal, JSON lines to a "
        "pipe. Exit status: 0 all prompts were answered; 1 some were refused, failed or, under a constraint, cut; "
        "2 wrong usage.",
    )
    parser.add_argument(
        "--model", required=True, help="an installed model, such as demo, or a local folder transformers can load"
    )
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT", help="one prompt")
    prompts.add_argument(
        "--input",
        metavar="FILE",
        help="JSON lines, - for standard input; each an object with 'prompt' (text or chat messages), optionally "
        f"{', '.join(LINE_KEYS[2:])}, and an 'id' to find it again",
    )
    constraints = parser.add_mutually_exclusive_group()
    constraints.add_argument("--schema", metavar="FILE", help="a JSON Schema that every answer must obey")
    constraints.add_argument("--regex", metavar="PATTERN", help="a regular expression that every answer must match")
    parser.add_argument(
        "--strategy",
        metavar="NAME",
        action="append",
        help="a grammar strategy to use; repeatable, in order of preference (default: where there is a constraint, all "
        "that are installed, guideway's own distributions first)",
    )
    parser.add_argument(
        "--modifier", metavar="NAME[={...}]", action="append", default=[], help="a logit modifier to use (repeatable)"
    )
    parser.add_argument(
        "--option",
        metavar="KIND.NAME.OPTION=VALUE",
        action="append",
        default=[],
        help="an option of a component, such as grammar.NAME.whitespace=compact (repeatable)",
    )
    parser.add_argument("--max-tokens", metavar="N", type=int, default=MAX_TOKENS, help="default: %(default)s")
    parser.add_argument("--temperature", metavar="T", type=float, default=0.0, help="0, the default, is greedy")
    parser.add_argument("--seed", metavar="N", type=int, help="makes draws repeatable")
    parser.add_argument("--raw", action="store_true", help="do not put prompts into the model's chat template")
    parser.add_argument("--json", action="store_true", help="print JSON lines also to a terminal")
    parser.set_defaults(run=_generate)


def _generate(args: Namespace) -> int:
    jobs = read_jobs(args)
    results: list[GenerationResult | None] = [None] * len(jobs)
    as_json = args.json or not sys.stdout.isatty()
    printed = 0

    def keep(index: int, result: GenerationResult) -> None:
        """Lines come in the order of the input, each as soon as all before it are there."""
        nonlocal printed
        results[index] = result
        while as_json and printed < len(jobs) and (ready := results[printed]) is not None:
            print(_json_line(_line(printed, jobs[printed], ready)), flush=True)
            printed += 1

    for index, job in enumerate(jobs):
        if job.error is not None:
            refused = GenerationResult(request_id=job.id, finish_reason=FinishReason.REFUSED, error=job.error)
            keep(index, refused)
    asked = [index for index, job in enumerate(jobs) if job.error is None]
    try:
        if asked:
            with _loading():
                engine = _engine(args, jobs)
            with engine, _progress(len(asked)) as advance:

                def ended(position: int, result: GenerationResult) -> None:
                    advance()
                    keep(asked[position], result)

                engine.generate([jobs[i].prompt for i in asked], [jobs[i].params for i in asked], on_result=ended)
    finally:  # also when interrupted: what has been answered is worth something
        answered = [(job, result) for job, result in zip(jobs, results, strict=True) if result is not None]
        if answered and not as_json:
            _print_table(answered)
    return _report(answered)


def _engine(args: Namespace, jobs: list[Job]) -> Engine:
    constrained = any(job.params.constraint is not None for job in jobs)
    strategies = args.strategy or (_installed_strategies() if constrained else [])
    modifiers = {name for job in jobs if isinstance(job.params.modifiers, dict) for name in job.params.modifiers}
    try:
        from guideway.engine.config import EngineConfig
        from guideway.engine.engine import Engine

        return Engine(
            EngineConfig(
                model=args.model,
                grammar=tuple(strategies),
                modifiers=tuple(sorted(map(str, modifiers))),
                options=named_options(args.option),
                plugins=PluginSettings(enable=args.enable_plugin),
            )
        )
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"guideway's own engine needs {error.name!r}, which is not installed: pip install 'guideway[engine]'",
            field="model",
        ) from error
    except PluginError as error:
        if not args.strategy and error.plugin.rpartition("/")[2].startswith("grammar."):
            error.add_note("It was chosen because it is installed; --strategy NAME chooses others.")
        raise


def _installed_strategies() -> list[str]:
    """Every grammar strategy that is installed: of guideway's own distributions first, the slow reference last."""
    records = [record for record in PluginIndex.scan().records if record.kind == "grammar"]
    claimed = [record.name for record in records]

    def rank(distribution: str) -> int:
        return 2 if distribution == "guideway" else 0 if distribution.startswith("guideway-") else 1

    addresses = [
        (rank(r.distribution), r.name if claimed.count(r.name) == 1 else f"{r.distribution}/{r.name}") for r in records
    ]
    return [address for _, address in sorted(addresses)]


def _line(index: int, job: Job, result: GenerationResult) -> dict[str, Any]:
    return {
        "index": index,
        "id": job.id,
        "text": result.text,
        "finish_reason": str(result.finish_reason),
        "num_tokens": len(result.token_ids),
        "strategy": result.strategy,
        "unenforced": list(result.unenforced),
        "error": None if result.error is None else _described(result.error),
    }


def _json_line(values: dict[str, Any]) -> str:
    """As readable as standard output allows."""
    text = json.dumps(values, ensure_ascii=False)
    return text if _printable(text) == text else json.dumps(values)


def _printable(text: str) -> str:
    """`text`, with what standard output cannot encode escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _described(error: GuidewayError) -> dict[str, str]:
    described = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, InvalidRequest):
        described["field"] = error.field
    return described


@contextmanager
def _loading() -> Iterator[None]:
    """A spinner on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status("loading the model"):
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
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("generating", total=total)
        yield lambda: progress.advance(task)


def _print_table(answered: list[tuple[Job, GenerationResult]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_lines=True, expand=True, pad_edge=False)
    table.add_column("prompt", ratio=2, overflow="fold", style="dim")
    table.add_column("answer", ratio=3, overflow="fold")
    table.add_column("ended by", overflow="fold")
    for job, result in answered:
        notes = f"\nnot enforced: {', '.join(result.unenforced)}" if result.unenforced else ""
        answer = result.text if result.error is None else str(result.error)
        served = f"\n{result.strategy}" if result.strategy else ""
        table.add_row(
            Text(_printable(job.shown)),
            Text(_printable(answer + notes), style="" if result.error is None else "red"),
            Text(f"{result.finish_reason}\n{len(result.token_ids)} tokens{served}"),
        )
    Console().print(table)


def _report(answered: list[tuple[Job, GenerationResult]]) -> int:
    """Say on standard error what went wrong; the exit status."""
    status = 0
    for job, result in answered:
        if result.error is not None:
            status = 1
            verb = "was refused" if result.finish_reason is FinishReason.REFUSED else "failed"
            print(f"guideway: prompt {job.id} {verb}: {result.error}", file=sys.stderr)
        elif result.finish_reason is FinishReason.LENGTH and job.params.constraint is not None:
            status = 1
            print(
                f"guideway: the answer to prompt {job.id} was cut after {len(result.token_ids)} tokens and may be "
                "incomplete; raise --max-tokens",
                file=sys.stderr,
            )
        if result.unenforced:
            print(
                f"guideway: prompt {job.id}: {result.strategy} does not enforce {', '.join(result.unenforced)}",
                file=sys.stderr,
            )
    return status
