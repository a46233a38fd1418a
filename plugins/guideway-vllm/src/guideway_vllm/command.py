"""The command ``guideway vllm options``, which lists guideway's settings in vLLM. vLLM is not imported."""
# ruff: noqa: T201 - commands print

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import textwrap
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator
from typing import Any, get_type_hints

from guideway.api.options import docstrings_of, expected

from guideway_vllm.config import KEY, TABLES, GuestConfig

__all__ = ["add_vllm"]

INDENT = 22
"""Column of descriptions; longer names get a line of their own."""
WIDEST = 100

ABOUT = "guideway as a guest in vLLM."
OPTIONS = f"List the keys of vLLM's --additional-config '{{\"{KEY}\": {{...}}}}'."


def add_vllm(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the command ``vllm``."""
    parser = subparsers.add_parser("vllm", description=ABOUT)
    parser.set_defaults(run=_options)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands.add_parser("options", help="list what an operator may configure", description=OPTIONS)


def _options(_: Namespace) -> int:
    width = min(shutil.get_terminal_size().columns, WIDEST)
    print(f"usage: vllm serve MODEL --additional-config '{{\"{KEY}\": {{KEY: VALUE, ...}}}}'\n")
    told = f"The keys and their values, in JSON; {{}} is enough. Without the key {KEY!r} vLLM is what it was."
    print(textwrap.fill(told, width))
    for heading, table, prefix in _tables():
        print(f"\n{heading}")
        for line in _describe(table, prefix, width):
            print(line)
    return 0


def _tables() -> Iterator[tuple[str, Any, str]]:
    yield "options:", GuestConfig, ""
    for name, table in TABLES.items():
        yield f"{name}, a mapping of:", table, f"{name}."


def _describe(table: Any, prefix: str, width: int) -> Iterator[str]:
    hints, helps = get_type_hints(table, include_extras=True), docstrings_of(table)
    for field in dataclasses.fields(table):
        if not prefix and field.name in TABLES:
            continue
        made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        said = helps.get(field.name, "").rstrip(".").replace("`", "")
        values = f"{expected(hints[field.name])}; default: {json.dumps(made)}"
        name = f"  {prefix}{field.name}"
        lines = [wrapped for text in (said, f"({values})") if text for wrapped in _wrap(text, width - INDENT)]
        if len(name) > INDENT - 2:
            yield name
            name = ""
        for line in lines:
            yield f"{name:{INDENT}}{line}"
            name = ""


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(re.sub(r"\bNone\b", "null", text), width)
