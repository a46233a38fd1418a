"""Reading prompts and parameters from the arguments and input lines of ``guideway generate``."""

from __future__ import annotations

import json
import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guideway.api.types import Choice, Constraint, Grammar, JsonSchema, Regex, SamplingParams, unique_keys
from guideway.command_line.usage import WrongValue
from guideway.errors import InvalidRequest
from guideway.json_schema import check_regex, check_schema
from guideway.plugins.configuration import component_name
from guideway.plugins.operator_files import located
from guideway.runtime.admission.sampling import ANY_VOCABULARY, validated

from guideway_engine.command_line.reading import check_input, is_id, read_lines, read_text
from guideway_engine.entries import SAMPLING, as_params, read_params
from guideway_engine.fields import add_flag

if TYPE_CHECKING:
    from guideway_engine.prompts import Prompt

__all__ = [
    "Job",
    "add_constraint",
    "add_flags",
    "constraint_of",
    "in_flags",
    "read_jobs",
    "wrong_flag",
]

MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt from the command line or an input line."""

    id: str
    shown: str
    """Prompt for display."""
    prompt: Prompt
    params: SamplingParams
    tenant: str = ""
    from_line: bool = False
    """True if the job is from an input line."""
    line: int = 0
    """Number of its line in the input; 0 for ``--prompt``."""
    error: InvalidRequest | None = None
    """Error in its line, if any; the other lines are still answered."""


def in_flags(text: str, job: Job) -> str:
    """Return a message with the names of sampling parameters as the user wrote them: flags, or keys of a JSON line."""

    def written(found: re.Match[str]) -> str:
        name, value = found.groups()
        is_word = value is None and "_" not in name and found.start() > 0  # as n and stop can be
        if name not in (*SAMPLING, "on_unenforced") or is_word:
            return found.group()
        if job.from_line:
            return name if value is None else f'"{name}": {value.lower() if value in ("True", "False") else value}'
        flag = name.replace("_", "-")
        return {None: f"--{flag}", "True": f"--{flag}", "False": f"--no-{flag}"}.get(value, f"--{flag} {value}")

    return re.sub(r"\b([a-z_]+)(?:=(\w+))?", written, text)


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags for prompts, a constraint and sampling parameters to a command."""
    given = parser.add_argument_group(
        "prompts",
        "A line of --input is an object with 'prompt' (text, chat messages or token ids), optionally an 'id' to find "
        "it again, and what it sets for itself: schema, regex, choice (a list), grammar (an object with 'dialect' and "
        "'text'), tenant, modifiers and every sampling parameter, under the names of the flags with _ for -.",
    )
    prompts = given.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT", help="one prompt; - for standard input")
    prompts.add_argument(
        "--input",
        metavar="FILE",
        help="JSON lines, one for each prompt; - for standard input",
    )
    given.add_argument("--raw", action="store_true", help="do not put prompts into the model's chat template")
    given.add_argument("--tenant", metavar="NAME", default="", help="on whose behalf")
    add_constraint(parser)
    group = parser.add_argument_group("sampling")
    for name, field in SAMPLING.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "logit_bias":
            help_text = "a token id, and what is added to its logit; -inf bans the token (repeatable)"
            group.add_argument(
                flag, metavar="ID=VALUE", type=_bias, action="append", default=SUPPRESS, dest=name, help=help_text
            )
        elif name == "max_tokens":
            add_flag(group, replace(field, default=MAX_TOKENS), flag, dest=name)
        elif name == "stop":  # stop strings may contain commas
            add_flag(group, replace(field, hint=tuple[str, ...]), flag, dest=name, split=False)
        else:
            add_flag(group, field, flag, dest=name)


def add_constraint(parser: ArgumentParser) -> None:
    """Add the flags for a constraint to a command."""
    constraints = parser.add_argument_group("constraint").add_mutually_exclusive_group()
    constraints.add_argument(
        "--schema", metavar="FILE", help="a JSON Schema that every answer must obey: a file, or the schema itself"
    )
    constraints.add_argument("--regex", metavar="PATTERN", help="a regular expression that every answer must match")
    constraints.add_argument(
        "--choice", metavar="TEXT", action="append", help="one of the answers that may be given (repeatable)"
    )
    constraints.add_argument(
        "--grammar-file",
        metavar="DIALECT=FILE",
        type=_dialect_and_path,
        help="a grammar that every answer must follow, and its dialect, such as lark",
    )


def read_jobs(args: Namespace) -> list[Job]:
    """Return the jobs of a command line. Raises `InvalidRequest` for errors that concern all of them."""
    check_input(args)
    constraint = constraint_of(args)
    given = {name: value for name, value in vars(args).items() if name in SAMPLING}
    modifiers = {component_name("modifier", located(name)): options for name, options in args.modifier}
    common = {"max_tokens": MAX_TOKENS} | given | {"constraint": constraint, "modifiers": modifiers}
    common = as_params(common)
    if args.prompt is not None:
        prompt = args.prompt if args.prompt != "-" else read_text("-", "prompt").removesuffix("\n")
        return [_job("0", prompt, common, args.tenant, raw=args.raw)]
    jobs: list[Job] = []
    for number, line in enumerate(read_lines(args.input, "input"), start=1):
        if not line.strip():
            continue
        index = len(jobs)
        try:
            job = _job_of_line(f"{args.input}, line {number}", index, line, common, args.tenant, raw=args.raw)
            jobs.append(replace(job, line=number))
        except InvalidRequest as error:
            shown = line.strip().decode(errors="backslashreplace")[:200]
            job_id = _id_of(index, line)
            jobs.append(Job(job_id, shown, "", SamplingParams(), from_line=True, line=number, error=error))
    if not jobs:
        raise InvalidRequest(f"{args.input} holds no prompt", field="input")
    if len(jobs) > 1 and all(job.error for job in jobs):  # probably the wrong kind of file, for example plain text
        raise InvalidRequest(
            f"no line of {args.input} can be read: {jobs[0].error}. A line is a JSON object, such as "
            '{"prompt": "Is Paris in France?"}',
            field="input",
        )
    return jobs


def wrong_flag(args: Namespace, jobs: list[Job]) -> str | None:
    """Return the error of the sampling flags if all jobs have the same one; None if some job can be served, or has an
    error of its own. Admission finds conflicts with the model."""
    message = None
    for job in jobs:
        if job.error is not None:
            continue
        try:
            validated(job.params, ANY_VOCABULARY)
            return None
        except InvalidRequest as error:
            is_of_flags = error.field in SAMPLING and hasattr(args, error.field)
            found = in_flags(str(error), Job("", "", "", SamplingParams())) if is_of_flags else None
        if found is None or message not in (None, found):
            return None
        message = found
    return message


def constraint_of(args: Namespace) -> Constraint | None:
    """Return the constraint of a command line, if any. Raises `InvalidRequest` for a file that cannot be read or is not
    a schema, and `WrongValue` for errors in the command line itself."""
    if args.schema is not None:
        is_inline = args.schema.lstrip().startswith("{")
        schema = JsonSchema(args.schema if is_inline else read_text(args.schema, "schema"))
        with _named("--schema: " if is_inline else f"{args.schema}: ", WrongValue if is_inline else InvalidRequest):
            schema.cached(check_schema)
        return schema
    if args.regex is not None:
        with _named("", WrongValue):
            check_regex(args.regex, "--regex")
        return Regex(args.regex)
    if args.choice is not None:
        return Choice(args.choice)
    if args.grammar_file is not None:
        dialect, path = args.grammar_file
        return Grammar(read_text(path, "grammar"), dialect)
    return None


def _dialect_and_path(text: str) -> tuple[str, str]:
    """Parse ``DIALECT=FILE``."""
    dialect, _, path = text.partition("=")
    if not dialect or not path:
        raise ArgumentTypeError(f"must be DIALECT=FILE, such as lark=answer.lark, not {text!r}")
    return dialect, path


def _bias(text: str) -> tuple[int, float]:
    """Parse ``ID=VALUE``."""
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError as error:
        raise ArgumentTypeError(f"must be ID=VALUE, a token id and a number, not {text!r}") from error


def _job(job_id: str, prompt: Any, params: dict[str, Any], tenant: Any, *, raw: bool) -> Job:
    shown = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
    if isinstance(prompt, str) and not raw:
        prompt = [{"role": "user", "content": prompt}]
    return Job(job_id, shown, prompt, SamplingParams(**params), tenant)


def _job_of_line(where: str, index: int, line: bytes, common: dict[str, Any], tenant: str, *, raw: bool) -> Job:
    entry = _parsed(where, line)
    params = common | read_params(where, entry)
    if not is_id(its_id := entry.get("id", index)):
        raise InvalidRequest(f"{where}: 'id' must be text or a whole number, not {json.dumps(its_id)}", field="input")
    job = _job(str(its_id), entry["prompt"], params, entry.get("tenant", tenant), raw=raw)
    return replace(job, from_line=True)


def _parsed(where: str, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line.decode(), object_pairs_hook=unique_keys)  # a bias may be -Infinity
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{where} contains a lone surrogate, which is not valid Unicode text; remove it", field="input"
        ) from error
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode()) + 1
        byte = line[error.start]
        raise InvalidRequest(
            f"{where} is not UTF-8: the byte 0x{byte:02x} at column {column}", field="input"
        ) from error
    except RecursionError as error:
        raise InvalidRequest(f"{where} is nested too deeply", field="input") from error
    except ValueError as error:  # JSONDecodeError, or ValueError for a number with too many digits
        raise InvalidRequest(f"{where} is not JSON: {error}", field="input") from error
    if not isinstance(entry, dict):
        raise InvalidRequest(
            f"{where} must be an object with 'prompt' (text, or a list of chat messages)", field="input"
        )
    return entry


def _id_of(index: int, line: bytes) -> str:
    """Return the id of an invalid line if it can be read, so that its error can be found; else its index."""
    try:
        its_id = json.loads(line)["id"]
        return str(its_id if is_id(its_id) else index).encode().decode()
    except (ValueError, TypeError, KeyError, RecursionError):  # UnicodeError is a ValueError
        return str(index)


@contextmanager
def _named(place: str, kind: type[InvalidRequest]) -> Iterator[None]:
    """Convert errors of a request within the context to `kind`, prefixed with their place."""
    try:
        yield
    except InvalidRequest as error:
        raise kind(f"{place}{error}", field=error.field) from error
