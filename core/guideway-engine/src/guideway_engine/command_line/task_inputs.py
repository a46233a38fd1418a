"""Input of ``guideway embed``, ``rerank`` and ``classify``: lines of text, or JSON lines."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from guideway.api.types import strict_json
from guideway.command_line.usage import WrongValue
from guideway.errors import InvalidRequest, did_you_mean

from guideway_engine.command_line.reading import is_id, read_lines

__all__ = ["Entry", "add_flags", "read_entries"]

KEYS = {
    "embed": ("prompt", "prompt_token_ids", "id"),
    "rerank": ("query", "document", "id"),
    "classify": ("prompt", "prompt_token_ids", "pair", "id"),
}
"""Keys of a JSON line, by command."""

SUFFIXES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True)
class Entry:
    """One input."""

    id: str
    shown: str
    """Input for display."""
    value: Any
    line: int = 0
    """Number of its line in the input; 0 for ``--text``."""
    error: InvalidRequest | None = None
    """Error in its line, if any; the other lines are still computed."""
    is_blank: bool = False
    """True if its line is blank."""


def add_flags(parser: ArgumentParser, task: str) -> None:
    """Add the flags for inputs to a command."""
    keys = ", ".join(map(repr, KEYS[task]))
    group = parser.add_argument_group("input", f"A JSON line is an object with some of {keys}.")
    if task == "rerank":
        group.add_argument("--query", metavar="TEXT", help="what documents are ranked for, where a line does not say")
    either = group.add_mutually_exclusive_group(required=True)
    what = "one document (repeatable)" if task == "rerank" else "one text (repeatable)"
    either.add_argument("--text", metavar="TEXT", action="append", help=what)
    either.add_argument("--input", metavar="FILE", help="a text on each line, or JSON lines; - for standard input")
    group.add_argument(
        "--lines",
        choices=("text", "json"),
        help="the lines of --input (default: json if its name ends with .jsonl, .ndjson or .json, else text)",
    )


def read_entries(args: Namespace, task: str) -> list[Entry]:
    """Return the inputs of a command line. Raises `InvalidRequest` for errors that concern all of them."""
    query = getattr(args, "query", None)
    if args.text is not None:
        texts = [(str(index), text) for index, text in enumerate(args.text)]
        return [Entry(its_id, text, _value(task, query, text)) for its_id, text in texts]
    form = args.lines or ("json" if PurePath(args.input).suffix in SUFFIXES else "text")
    lines = read_lines(args.input, "input")
    entries = list(_entries(lines, f"{args.input}, line ", task, query, as_json=form == "json"))
    if all(entry.is_blank for entry in entries):
        raise InvalidRequest(f"{args.input} holds no text", field="input")
    return entries


def _entries(lines: Iterable[bytes], where: str, task: str, query: str | None, *, as_json: bool) -> Iterator[Entry]:
    """Yield one entry per line, so that the rows of a matrix match line numbers."""
    for index, line in enumerate(lines):
        number = index + 1
        if not line.strip():
            why = f"{where}{number} is blank; write a text there, or take the line out"
            error = InvalidRequest(why, field="input")
            yield Entry(str(index), "", None, line=number, error=error, is_blank=True)
            continue
        try:
            text = line.decode().rstrip("\r")
            entry = (
                _of_line(where + str(number), task, query, index, text)
                if as_json
                else Entry(str(index), text, _value(task, query, text))
            )
        except UnicodeDecodeError as error:
            column = len(line[: error.start].decode()) + 1
            why = f"{where}{number} is not UTF-8: the byte 0x{line[error.start]:02x} at column {column}"
            shown = line.decode(errors="backslashreplace")
            entry = Entry(str(index), shown, None, error=InvalidRequest(why, field="input"))
        yield replace(entry, line=number)


def _of_line(where: str, task: str, query: str | None, index: int, line: str) -> Entry:
    try:
        return _parse(where, task, query, index, line)
    except InvalidRequest as error:
        return Entry(str(index), line[:200], None, error=error)


def _parse(where: str, task: str, query: str | None, index: int, line: str) -> Entry:
    try:
        entry = strict_json(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is not JSON: {error}", field="input") from error
    known = KEYS[task]
    unknown = sorted(entry.keys() - set(known)) if isinstance(entry, dict) else []
    if not isinstance(entry, dict) or unknown:
        found = f"the unknown key {unknown[0]!r}" if unknown else "no object"
        near = unknown and did_you_mean(unknown[0], known)
        raise InvalidRequest(f"{where} has {found}; {near or 'known keys are ' + ', '.join(known)}", field="input")
    if not is_id(its_id := entry.pop("id", index)):
        raise InvalidRequest(f"{where}: 'id' must be text or a whole number, not {json.dumps(its_id)}", field="input")
    its_id = str(its_id)
    if task == "rerank":
        if "document" not in entry:
            raise InvalidRequest(f"{where} has no 'document'", field="input")
        return Entry(its_id, str(entry["document"]), _value(task, entry.get("query", query), entry["document"]))
    if "pair" in entry:
        if len(entry) > 1:
            raise InvalidRequest(f"{where} has 'pair' and more; keep one", field="input")
        return Entry(its_id, json.dumps(entry["pair"], ensure_ascii=False), entry["pair"])
    return Entry(its_id, str(entry.get("prompt", entry)), entry)


def _value(task: str, query: Any, text: Any) -> Any:
    if task != "rerank":
        return text
    if query is None:
        raise WrongValue("there is no query to rank documents for; give --query, or JSON lines with 'query'")
    return (query, text)
