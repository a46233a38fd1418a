"""From the arguments and input lines of ``guideway generate`` to prompts and parameters."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guideway.api.errors import InvalidRequest
from guideway.api.types import Constraint, JsonSchema, Regex, SamplingParams

if TYPE_CHECKING:
    from guideway.engine.engine import Prompt

__all__ = ["LINE_KEYS", "Job", "named_options", "read_jobs"]

LINE_KEYS = ("id", "prompt", "schema", "regex", "max_tokens", "temperature", "seed", "modifiers")
"""What a line of ``--input`` may hold."""


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt of the command line or of a line of input."""

    id: str
    shown: str
    """The prompt as a person reads it."""
    prompt: Prompt
    params: SamplingParams
    error: InvalidRequest | None = None
    """What is wrong with its line, if there is something; the others are answered all the same."""


def read_jobs(args: Namespace) -> list[Job]:
    """The jobs of a command line. Raises `InvalidRequest` for what concerns all of them."""
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
        "modifiers": dict(_modifier(text) for text in args.modifier),
    }
    if args.prompt is not None:
        return [_job("0", args.prompt, common, raw=args.raw)]
    lines = _read(args.input, "input").split("\n")  # splitlines would cut where JSON strings may go on
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise InvalidRequest(f"{args.input} holds no prompt", field="input")
    jobs = []
    for index, (number, line) in enumerate(numbered):
        try:
            jobs.append(_job_of_line(f"{args.input}, line {number}", index, line, common, raw=args.raw))
        except InvalidRequest as error:
            jobs.append(Job(str(index), line.strip()[:200], "", SamplingParams(), error))
    return jobs


def named_options(texts: list[str]) -> dict[str, dict[str, Any]]:
    """``KIND.NAME.OPTION=VALUE`` texts as the options of components; a value is JSON, or else text."""
    options: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        component, dot, option = place.rpartition(".")
        if not equals or not dot or "." not in component:
            raise InvalidRequest(f"--option takes KIND.NAME.OPTION=VALUE, not {text!r}", field="option")
        options.setdefault(component, {})[option] = _value(value)
    return options


def _modifier(text: str) -> tuple[str, Any]:
    """``NAME`` or ``NAME={...}``."""
    name, equals, options = text.partition("=")
    return name, _value(options) if equals else {}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _job(job_id: str, prompt: Any, params: dict[str, Any], *, raw: bool) -> Job:
    shown = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
    if isinstance(prompt, str) and not raw:
        prompt = [{"role": "user", "content": prompt}]
    return Job(job_id, shown, prompt, SamplingParams(**params))


def _job_of_line(where: str, index: int, line: str, common: dict[str, Any], *, raw: bool) -> Job:
    entry = _parsed(where, line)
    if unknown := sorted(entry.keys() - set(LINE_KEYS)):
        known = ", ".join(LINE_KEYS)
        raise InvalidRequest(f"{where} has the unknown key {unknown[0]!r}; known: {known}", field="input")
    if "schema" in entry and "regex" in entry:
        raise InvalidRequest(f"{where} has both 'schema' and 'regex'; keep one", field="input")
    if isinstance(entry.get("schema"), str):
        raise InvalidRequest(f"{where} must hold the schema itself, not text or a path", field="input")
    keys = ("max_tokens", "temperature", "seed", "modifiers")
    params = common | {key: entry[key] for key in keys if key in entry}
    if "schema" in entry:
        params["constraint"] = JsonSchema(entry["schema"])
    elif "regex" in entry:
        params["constraint"] = Regex(entry["regex"])
    return _job(str(entry.get("id", index)), entry["prompt"], params, raw=raw)


def _parsed(where: str, line: str) -> dict[str, Any]:
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
        raise InvalidRequest(
            f"{where} must be an object with 'prompt' (text, or a list of chat messages)", field="input"
        )
    return entry


def _read(path: str, what: str) -> str:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"cannot read the {what} {path!r}: {error.strerror or error}", field=what) from error
    except ValueError as error:  # not UTF-8, or a path with a NUL
        raise InvalidRequest(f"cannot read the {what} {path!r}: {error}", field=what) from error
    return text.removeprefix("\ufeff")  # a byte order mark


def _named(path: str, check: Callable[[], object]) -> None:
    """Run `check`; an error of the request names the file it came from."""
    try:
        check()
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}", field=error.field) from error
