"""Output of ``guideway generate``: JSON lines, a table, and errors on standard error."""
# ruff: noqa: T201 - commands print

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from guideway.api.types import Completion, FinishReason, GenerationResult, Losses, TokenLogprobs
from guideway.command_line.terminal import as_stdout_can, print_json
from guideway.errors import GuidewayError, InvalidRequest, printable
from guideway.json_schema import locate

from guideway_engine.command_line.jobs import Job, in_flags
from guideway_engine.command_line.lines import Lines

__all__ = ["Answers", "print_object", "print_table", "report"]

OUTCOMES = ("answered", "cut", "refused", "failed")
"""Outcomes of a prompt, from best to worst."""

CONSTRAINT = "constraint"
"""Entry of `Completion.unenforced` for an output that was ended before it was complete."""
CLOSING = "closing"
"""Entry of `Completion.unenforced` for an output that was cut by its limit."""


class Answers:
    """Results of the jobs of one run.

    A file gets each line at once, and is put in order when it is closed. A stream gets the lines in the order of the
    input, each as soon as all lines before it are written. `lines` is None if a table is printed at the end instead.
    Jobs whose id is in `done` were answered by an earlier run. `record` returns additional fields for the line of an
    answer.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        lines: Lines | None,
        done: Collection[str] = (),
        record: Callable[[Job], Mapping[str, Any]] | None = None,
    ) -> None:
        self._record = record
        self.jobs = jobs
        self._lines = lines
        self._results: dict[int, GenerationResult] = {}
        asked = [index for index, job in enumerate(jobs) if job.id not in done]
        self._num_done = len(jobs) - len(asked)
        self._waiting = deque(asked if lines is not None and lines.is_stream else ())
        """Indices of the jobs whose lines a stream does not have yet, in order."""
        self._began: float | None = None

    @property
    def ended(self) -> list[tuple[Job, GenerationResult]]:
        """Jobs that have a result, with it, in the order of the input."""
        return [(self.jobs[index], self._results[index]) for index in sorted(self._results)]

    def begin(self) -> None:
        """Start the clock for the summary. Called before the first token is generated."""
        self._began = self._began or time.monotonic()

    def keep(self, index: int, result: GenerationResult) -> None:
        """Store a result, and write all lines that can be written. Raises OSError and `OutputLost`."""
        self._results[index] = result
        if self._lines is not None and not self._lines.is_stream:
            self._write(self._lines, index)
        while self._waiting and self._waiting[0] in self._results:
            self._write_next()

    def write_rest(self) -> None:
        """Write the results that wait for earlier ones, which will not be available."""
        while self._waiting:
            self._write_next()

    def _write_next(self) -> None:
        index = self._waiting.popleft()  # first, so that an interrupted line is not written twice
        if self._lines is not None and index in self._results:
            self._write(self._lines, index)

    def _write(self, lines: Lines, index: int) -> None:
        job, result = self.jobs[index], self._results[index]
        # a refused constraint may not be JSON
        refused = result.finish_reason is FinishReason.REFUSED
        record = None if refused or self._record is None else self._record(job)
        lines.write(line_of(index, job, result, record), job.id)

    def summary(self, *, interrupted: bool) -> str:
        """Return one line with the number of answered prompts and the speed."""
        counts = Counter(_outcome(job, result) for job, result in self.ended)
        said = [f"{counts[what]} {what}" for what in OUTCOMES if counts[what] or what == "answered"]
        if self._num_done:
            said.append(f"{self._num_done} answered before")
        num_tokens = sum(len(output.token_ids) for _, result in self.ended for output in result.outputs)
        if num_tokens and self._began is not None:
            seconds = max(time.monotonic() - self._began, 1e-9)
            said.append(f"{_tokens(num_tokens)} in {seconds:.1f} s, {num_tokens / seconds:.0f} tokens/s")
        total = len(self.jobs)
        head = "1 prompt" if total == 1 else f"{total} prompts"
        if interrupted:
            head = f"interrupted: {len(self._results) + self._num_done} of {total} done"
        return f"guideway: {head}: {'; '.join(said)}"


def _outcome(job: Job, result: GenerationResult) -> str:
    """Return the worst of the outcomes of all outputs, one of `OUTCOMES`."""
    return max((_outcome_of(job, output) for output in result.outputs), key=OUTCOMES.index)


def _outcome_of(job: Job, output: Completion) -> str:
    if output.error is not None:
        return "refused" if output.finish_reason is FinishReason.REFUSED else "failed"
    if output.finish_reason is FinishReason.ABORT:
        return "failed"
    if job.params.constraint is not None and (
        output.finish_reason is FinishReason.LENGTH or CONSTRAINT in output.unenforced
    ):
        return "cut"
    return "answered"


def line_of(index: int, job: Job, result: GenerationResult, record: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the object of a JSON line: the first output, and all of them if there are several; with a `record`, also
    its fields and the token ids of each output."""
    line = {"index": index, "id": job.id, **(record or {}), **_output(result.outputs[0], with_ids=record is not None)}
    if len(result.outputs) > 1:
        line["outputs"] = [
            {"index": output.index, **_output(output, with_ids=record is not None)} for output in result.outputs
        ]
    if result.prompt_logprobs is not None:
        line["prompt_logprobs"] = [None if entry is None else _logprobs(entry) for entry in result.prompt_logprobs]
    return line


def print_object(answered: Sequence[tuple[Job, GenerationResult]]) -> bool:
    """Print the answer, if there is a single one and it is a JSON object or array, so that it can be read and copied;
    its finish reason goes to standard error. Return False, and print nothing, in other cases."""
    outputs = [output for _, result in answered for output in result.outputs]
    if len(outputs) != 1 or outputs[0].error is not None or outputs[0].num_reasoning_tokens:
        return False
    try:
        value = json.loads(outputs[0].text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict | list):
        return False
    print_json(value)
    sys.stdout.flush()
    print(printable(f"guideway: {', '.join(_ending(outputs[0]).splitlines())}"), file=sys.stderr)
    return True


def print_table(answered: Sequence[tuple[Job, GenerationResult]]) -> None:
    """Print a table with one row per output."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_lines=True, expand=True, pad_edge=False)
    table.add_column("prompt", ratio=2, overflow="fold", style="dim")
    table.add_column("answer", ratio=3, overflow="fold")
    table.add_column("ended by", overflow="fold")
    places = _Places()
    for job, result in answered:
        for rank, output in enumerate(result.outputs, start=1):
            notes = f"\nnot enforced: {places.of(job, output, output.unenforced)}" if output.unenforced else ""
            begin = output.answer_start if output.num_reasoning_tokens else 0
            answer = Text(_printable(output.text[:begin]), style="dim")
            answer.append(_printable(output.text[begin:] + notes), style="not dim")
            if output.error is not None:
                where = f"line {job.line}: " if job.line and job.error is None else ""
                answer = Text(_printable(where + in_flags(str(output.error), job)), style="red")
            number = f"output {rank} of {len(result.outputs)}\n" if len(result.outputs) > 1 else ""
            table.add_row(
                Text(_printable(job.shown) if rank == 1 else ""),
                answer,
                Text(_printable(number + _ending(output))),
            )
    Console().print(table)


def report(answered: Sequence[tuple[Job, GenerationResult]], *, in_table: bool = False) -> int:
    """Report errors on standard error, except for those that a table shows, and return the exit status. The same words
    about several prompts are said once."""
    status = 0
    said: dict[tuple[str, str], list[str]] = {}
    """Prompts by the words before and after them."""
    places = _Places()
    for job, result in answered:
        for output in result.outputs:
            which = job.id if job.error is not None or not job.line else f"{job.id} in line {job.line}"
            which = printable(f"{which}, output {output.index}" if len(result.outputs) > 1 else which)

            def say(before: str, after: str, which: str = which) -> None:
                said.setdefault((before, after), []).append(which)

            if output.error is not None:
                status = 1
                verb = "was refused" if output.finish_reason is FinishReason.REFUSED else "failed"
                if not in_table:
                    say("", f" {verb}: {in_flags(str(output.error), job)}")
            elif output.finish_reason is FinishReason.LENGTH and job.params.constraint is not None:
                status = 1
                cut = f" was cut after {_tokens(len(output.token_ids))} and may be incomplete; raise --max-tokens"
                say("the answer to ", cut)
            elif CONSTRAINT in output.unenforced:
                status = 1
                by = "a modifier" if output.stop is None else f"the stop string {output.stop!r}"
                say("the answer to ", f" was cut by {by} before it satisfied the constraint")
            if output.valid is False:
                status = 1
                say("the answer to ", " was checked and does not satisfy the constraint")
            others = tuple(name for name in output.unenforced if name not in (CONSTRAINT, CLOSING))
            if others and not in_table:
                by = f"{output.strategy} does not enforce" if output.strategy else "not enforced:"
                say("", f": {by} {places.of(job, output, others)}")
    for (before, after), prompts in said.items():
        print(printable(f"guideway: {before}{_name_prompts(prompts)}{after}"), file=sys.stderr)
    return status


class _Places:
    """Words for what outputs do not enforce, with the places in the schema, which are searched once."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, tuple[str, ...], Losses], str] = {}
        """By constraint, names and losses."""

    def of(self, job: Job, output: Completion, names: Iterable[str]) -> str:
        """Return the words for these of the output's names."""
        key = id(job.params.constraint), tuple(names), output.losses
        if key not in self._found:
            self._found[key] = locate(job.params.constraint, *key[1:])
        return self._found[key]


def _name_prompts(prompts: Sequence[str]) -> str:
    """Return words for the prompts with these ids, in the singular."""
    if len(prompts) == 1:
        return f"prompt {prompts[0]}"
    listed = ", ".join(prompts[:3])
    return f"each of {len(prompts)} prompts ({listed}{', ...' if len(prompts) > 3 else ''})"


def _output(output: Completion, *, with_ids: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "text": output.text,
        "finish_reason": str(output.finish_reason),
        "stop": output.stop,
        "num_tokens": len(output.token_ids),
        "strategy": output.strategy,
        "unenforced": list(output.unenforced),
        "losses": [loss._asdict() for loss in output.losses],
        "num_reasoning_tokens": output.num_reasoning_tokens,
        "answer_start": output.answer_start,
        "closed_early": output.closed_early,
        "valid": output.valid,
        "error": None if output.error is None else _describe(output.error),
    }
    if with_ids or output.records is not None:
        shown["token_ids"] = list(output.token_ids)
    if output.reports:
        shown["reports"] = dict(output.reports)
    if output.logprobs is not None:
        shown["logprobs"] = [_logprobs(entry) for entry in output.logprobs]
    if output.records is not None:
        shown["records"] = output.records.to_lists()
    return shown


def _logprobs(entry: TokenLogprobs) -> dict[str, Any]:
    """Return an entry for JSON. JSON has no infinity, so null is the logarithm of zero."""
    return {
        "token_id": entry.token_id,
        "token": entry.token,
        "logprob": _finite(entry.logprob),
        "top": [
            {"token_id": token_id, "token": token, "logprob": _finite(logprob)}
            for (token_id, logprob), token in zip(entry.top, entry.top_tokens, strict=True)
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ending(output: Completion) -> str:
    lines = [str(output.finish_reason), _tokens(len(output.token_ids))]
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


def _tokens(number: int) -> str:
    return "1 token" if number == 1 else f"{number} tokens"


def _describe(error: GuidewayError) -> dict[str, str]:
    described = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, InvalidRequest):
        described["field"] = error.field
    return described


def _printable(text: str) -> str:
    """Escape the parts of `text` that standard output cannot encode or a terminal would interpret."""
    return printable(as_stdout_can(text))
