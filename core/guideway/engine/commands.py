"""``guideway generate``."""
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guideway.api.errors import GuidewayError, InvalidConfiguration, InvalidRequest
from guideway.api.types import Constraint, FinishReason, GenerationResult, JsonSchema, Regex, SamplingParams
from guideway.plugins import PluginIndex

if TYPE_CHECKING:
    from guideway.engine.engine import Engine, Prompt

__all__ = ["add_generate"]

LINE_KEYS = ("id", "prompt", "schema", "regex", "max_tokens", "temperature", "seed")
"""What a line of ``--input`` may hold."""
MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt of the command line or of a line of input."""

    id: str
    shown: str
    """The prompt as a person reads it."""
    prompt: Prompt
    params: SamplingParams


def add_generate(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add ``generate``."""
    parser = subparsers.add_parser(
        "generate",
        help="answer prompts with a model, under a constraint",
        description="Answer prompts with a model, under a constraint. Prints a table to a terminal, JSON lines to a "
        "pipe. Exit status: 0 all prompts were answered, 1 some were refused or failed, 2 wrong usage.",
    )
    parser.add_argument(
        "--model", required=True, help="an installed model, such as demo, or a folder transformers can load"
    )
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT", help="one prompt")
    prompts.add_argument(
        "--input",
        metavar="FILE",
        help=f"JSON lines, - for standard input; each an object with 'prompt' and optionally {', '.join(LINE_KEYS[2:])}"
        " and an 'id' to find it again",
    )
    constraints = parser.add_mutually_exclusive_group()
    constraints.add_argument("--schema", metavar="FILE", help="a JSON Schema that every answer must obey")
    constraints.add_argument("--regex", metavar="PATTERN", help="a regular expression that every answer must match")
    parser.add_argument(
        "--strategy",
        metavar="NAME",
        action="append",
        help="a grammar strategy to use; repeatable, in order of preference (default: all that are installed)",
    )
    parser.add_argument("--max-tokens", metavar="N", type=int, default=MAX_TOKENS, help="default: %(default)s")
    parser.add_argument("--temperature", metavar="T", type=float, default=0.0, help="0, the default, is greedy")
    parser.add_argument("--seed", metavar="N", type=int, help="makes draws repeatable")
    parser.add_argument("--raw", action="store_true", help="do not put prompts into the model's chat template")
    parser.add_argument("--json", action="store_true", help="print JSON lines also to a terminal")
    parser.set_defaults(run=_generate)


def _generate(args: Namespace) -> int:
    jobs = _jobs(args)
    strategies = tuple(args.strategy or _installed_strategies())
    as_json = args.json or not sys.stdout.isatty()
    ended: dict[int, GenerationResult] = {}
    printed = 0
    with _engine(args.model, strategies) as engine, _progress(len(jobs)) as advance:

        def show(index: int, result: GenerationResult) -> None:
            """Lines come in the order of the input, each as soon as all before it are there."""
            nonlocal printed
            advance()
            ended[index] = result
            while as_json and printed in ended:
                print(_json_line(_line(printed, jobs[printed], ended[printed])), flush=True)
                printed += 1

        results = engine.generate([job.prompt for job in jobs], [job.params for job in jobs], on_result=show)
    if not as_json:
        _print_table(jobs, results)
    return _report(jobs, results)


def _engine(model: str, strategies: tuple[str, ...]) -> Engine:
    try:
        from guideway.engine.config import EngineConfig
        from guideway.engine.engine import Engine

        return Engine(EngineConfig(model=model, grammar=strategies))
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"guideway's own engine needs {error.name!r}, which is not installed: pip install 'guideway[engine]'",
            field="model",
        ) from error


def _installed_strategies() -> list[str]:
    """Every grammar strategy that is installed, by name; what ships with guideway comes last."""
    records = [record for record in PluginIndex.scan().records if record.kind == "grammar"]
    claimed = [record.name for record in records]
    addresses = [
        (r.distribution == "guideway", r.name if claimed.count(r.name) == 1 else f"{r.distribution}/{r.name}")
        for r in records
    ]
    return [address for _, address in sorted(addresses)]


def _jobs(args: Namespace) -> list[Job]:
    constraint: Constraint | None = None
    if args.schema is not None:
        constraint = JsonSchema(_read(args.schema, "schema"))
        _named(args.schema, constraint.source)
    elif args.regex is not None:
        constraint = Regex(args.regex)
    common = {
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "seed": args.seed,
        "constraint": constraint,
    }
    if args.prompt is not None:
        return [_job("0", args.prompt, common, raw=args.raw)]
    lines = _read(args.input, "input").split("\n")  # splitlines would cut where JSON strings may go on
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    jobs = [
        _job_of_line(f"{args.input}, line {number}", index, line, common, raw=args.raw)
        for index, (number, line) in enumerate(numbered)
    ]
    if not jobs:
        raise InvalidRequest(f"{args.input} holds no prompt", field="input")
    return jobs


def _job(job_id: str, prompt: Any, params: dict[str, Any], *, raw: bool) -> Job:
    shown = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
    if isinstance(prompt, str) and not raw:
        prompt = [{"role": "user", "content": prompt}]
    return Job(job_id, shown, prompt, SamplingParams(**params))


def _job_of_line(where: str, index: int, line: str, common: dict[str, Any], *, raw: bool) -> Job:
    try:
        entry = json.loads(line)
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{where} holds a lone surrogate, which no text can contain", field="input") from error
    except RecursionError as error:
        raise InvalidRequest(f"{where} is nested too deeply", field="input") from error
    except ValueError as error:  # JSONDecodeError is one, and so is what a number of too many digits raises
        raise InvalidRequest(f"{where} is not JSON: {error}", field="input") from error
    if not isinstance(entry, dict) or "prompt" not in entry:
        raise InvalidRequest(f"{where} must be an object with 'prompt'", field="input")
    if unknown := sorted(entry.keys() - set(LINE_KEYS)):
        raise InvalidRequest(
            f"{where} has the unknown key {unknown[0]!r}; known: {', '.join(LINE_KEYS)}", field="input"
        )
    if "schema" in entry and "regex" in entry:
        raise InvalidRequest(f"{where} has both 'schema' and 'regex'; keep one", field="input")
    params = common | {key: entry[key] for key in ("max_tokens", "temperature", "seed") if key in entry}
    if "schema" in entry:
        params["constraint"] = JsonSchema(entry["schema"])
    elif "regex" in entry:
        params["constraint"] = Regex(entry["regex"])
    return _job(str(entry.get("id", index)), entry["prompt"], params, raw=raw)


def _read(path: str, what: str) -> str:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not UTF-8, or a path with a NUL
        raise InvalidRequest(f"cannot read the {what} {path!r}: {error}", field=what) from error
    return text.removeprefix("\ufeff")  # a byte order mark


def _named(path: str, check: Callable[[], object]) -> None:
    """Run `check`; an error of the request names the file it came from."""
    try:
        check()
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}", field=error.field) from error


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


def _print_table(jobs: list[Job], results: list[GenerationResult]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True)
    for column in ("prompt", "answer", "tokens", "ended by", "strategy"):
        table.add_column(column, overflow="fold", justify="right" if column == "tokens" else "left")
    for job, result in zip(jobs, results, strict=True):
        notes = f"\nnot enforced: {', '.join(result.unenforced)}" if result.unenforced else ""
        answer = result.text if result.error is None else str(result.error)
        style = "" if result.error is None else "red"
        table.add_row(
            Text(_printable(job.shown)),
            Text(_printable(answer + notes), style=style),
            str(len(result.token_ids)),
            str(result.finish_reason),
            result.strategy or "",
        )
    Console().print(table)


def _report(jobs: list[Job], results: list[GenerationResult]) -> int:
    """Say on standard error what went wrong; the exit status."""
    status = 0
    for job, result in zip(jobs, results, strict=True):
        if result.error is not None:
            status = 1
            verb = "was refused" if result.finish_reason is FinishReason.REFUSED else "failed"
            print(f"guideway: prompt {job.id} {verb}: {result.error}", file=sys.stderr)
        elif result.finish_reason is FinishReason.LENGTH and job.params.constraint is not None:
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
