"""Show what came of prompts, for ``guideway generate``: JSON lines, a table, and what went wrong on standard error."""
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from guideway.api.types import Completion, FinishReason, GenerationResult, TokenLogprobs
from guideway.errors import GuidewayError, InvalidRequest, printable

from guideway_engine.command_line.jobs import Job, in_flags

__all__ = ["print_line", "print_table", "report"]

CONSTRAINT = "constraint"
"""In `Completion.unenforced`: the output was ended before it was complete."""
CLOSING = "closing"
"""The same, where its limit ended it."""


def print_line(index: int, job: Job, result: GenerationResult, record: Mapping[str, Any] | None = None) -> None:
    """One line of JSON, as readable as standard output allows: the first output, and all of them if there are more.
    With a `record`, what that says and the token ids of each output."""
    line = {"index": index, "id": job.id, **(record or {}), **_output(result.outputs[0], with_ids=record is not None)}
    if len(result.outputs) > 1:
        line["outputs"] = [
            {"index": output.index, **_output(output, with_ids=record is not None)} for output in result.outputs
        ]
    if result.prompt_logprobs is not None:
        line["prompt_logprobs"] = [None if entry is None else _logprobs(entry) for entry in result.prompt_logprobs]
    text = json.dumps(line, ensure_ascii=False)
    # the line and its end at once: an interrupt comes before or after both
    sys.stdout.write((text if _printable(text) == text else json.dumps(line)) + "\n")
    sys.stdout.flush()


def print_table(answered: Sequence[tuple[Job, GenerationResult]]) -> None:
    """A table for a person: one row per output."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_lines=True, expand=True, pad_edge=False)
    table.add_column("prompt", ratio=2, overflow="fold", style="dim")
    table.add_column("answer", ratio=3, overflow="fold")
    table.add_column("ended by", overflow="fold")
    for job, result in answered:
        for rank, output in enumerate(result.outputs, start=1):
            notes = f"\nnot enforced: {', '.join(output.unenforced)}" if output.unenforced else ""
            begin = output.answer_start if output.num_reasoning_tokens else 0
            answer = Text(_printable(output.text[:begin]), style="dim")
            answer.append(_printable(output.text[begin:] + notes), style="not dim")
            if output.error is not None:
                answer = Text(_printable(in_flags(str(output.error), job)), style="red")
            number = f"output {rank} of {len(result.outputs)}\n" if len(result.outputs) > 1 else ""
            table.add_row(
                Text(_printable(job.shown) if rank == 1 else ""),
                answer,
                Text(_printable(number + _ending(output))),
            )
    Console().print(table)


def report(answered: Sequence[tuple[Job, GenerationResult]], *, in_table: bool = False) -> int:
    """Say on standard error what went wrong, but for what a table says; the exit status."""
    status = 0
    for job, result in answered:
        for output in result.outputs:
            which = printable(f"{job.id}, output {output.index}" if len(result.outputs) > 1 else job.id)
            if output.error is not None:
                status = 1
                verb = "was refused" if output.finish_reason is FinishReason.REFUSED else "failed"
                if not in_table:
                    said = in_flags(str(output.error), job)
                    print(printable(f"guideway: prompt {which} {verb}: {said}"), file=sys.stderr)
            elif output.finish_reason is FinishReason.LENGTH and job.params.constraint is not None:
                status = 1
                print(
                    f"guideway: the answer to prompt {which} was cut after {_tokens(output)} and may be "
                    "incomplete; raise --max-tokens",
                    file=sys.stderr,
                )
            elif CONSTRAINT in output.unenforced:
                status = 1
                by = "a modifier" if output.stop is None else f"the stop string {output.stop!r}"
                print(
                    f"guideway: the answer to prompt {which} was cut by {by}, before it was what the constraint asks "
                    "for",
                    file=sys.stderr,
                )
            if output.valid is False:
                status = 1
                print(
                    f"guideway: the answer to prompt {which} is not what the constraint asks for, as the check found",
                    file=sys.stderr,
                )
            others = [name for name in output.unenforced if name not in (CONSTRAINT, CLOSING)]
            if others and not in_table:
                by = f"{output.strategy} does not enforce" if output.strategy else "not enforced:"
                print(printable(f"guideway: prompt {which}: {by} {', '.join(others)}"), file=sys.stderr)
    return status


def _output(output: Completion, *, with_ids: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "text": output.text,
        "finish_reason": str(output.finish_reason),
        "stop": output.stop,
        "num_tokens": len(output.token_ids),
        "strategy": output.strategy,
        "unenforced": list(output.unenforced),
        "num_reasoning_tokens": output.num_reasoning_tokens,
        "answer_start": output.answer_start,
        "closed_early": output.closed_early,
        "valid": output.valid,
        "error": None if output.error is None else _described(output.error),
    }
    if with_ids:
        shown["token_ids"] = list(output.token_ids)
    if output.reports:
        shown["reports"] = dict(output.reports)
    if output.logprobs is not None:
        shown["logprobs"] = [_logprobs(entry) for entry in output.logprobs]
    return shown


def _logprobs(entry: TokenLogprobs) -> dict[str, Any]:
    """JSON has no infinity; null stands for the logarithm of zero."""
    return {
        "token_id": entry.token_id,
        "logprob": _finite(entry.logprob),
        "top": [[token_id, _finite(logprob)] for token_id, logprob in entry.top],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ending(output: Completion) -> str:
    lines = [str(output.finish_reason), _tokens(output)]
    if isinstance(output.stop, str):
        lines[0] += f" {output.stop!r}"
    if output.num_reasoning_tokens:
        lines.append(f"{output.num_reasoning_tokens} of reasoning")
    if output.closed_early:
        lines.append("closed early")
    if output.valid is not None:
        lines.append("valid" if output.valid else "not valid")
    if output.strategy:
        lines.append(output.strategy)
    if output.logprobs:
        lines.append(f"mean logprob {sum(entry.logprob for entry in output.logprobs) / len(output.logprobs):.2f}")
    return "\n".join(lines)


def _tokens(output: Completion) -> str:
    number = len(output.token_ids)
    return "1 token" if number == 1 else f"{number} tokens"


def _described(error: GuidewayError) -> dict[str, str]:
    described = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, InvalidRequest):
        described["field"] = error.field
    return described


def _printable(text: str) -> str:
    """`text`, with what standard output cannot encode, or a terminal would obey, escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    return printable(text.encode(encoding, "backslashreplace").decode(encoding))
