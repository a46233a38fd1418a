"""Sentence templates; some are held out for the evaluation."""

from __future__ import annotations

import itertools
import random
import re
import tomllib
import zlib
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

__all__ = ["Split", "expand", "expansions", "groups", "pool"]

Split: TypeAlias = Literal["train", "test"]

HELD_OUT_SHARE = 5
"""One of this many templates of a group is held out."""

_CHOICE = re.compile(r"\[([^]]*)\]")


@cache
def groups() -> dict[str, tuple[str, ...]]:
    """Return all templates by group, such as ``person.name`` or ``person.married.yes``."""
    found: dict[str, tuple[str, ...]] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{path}.{key}" if path else key, inner)
        else:
            found[path] = tuple(value)

    walk("", tomllib.loads(files(__package__).joinpath("templates.toml").read_text("utf-8")))
    return found


@cache
def pool(group: str, split: Split) -> tuple[str, ...]:
    """Return the templates of `group` that `split` may use: ``test`` has the fifth with the lowest CRC-32."""
    ranked = sorted(groups()[group], key=lambda template: zlib.crc32(template.encode()))
    held_out = len(ranked) // HELD_OUT_SHARE
    return tuple(ranked[:held_out] if split == "test" else ranked[held_out:])


def expand(template: str, rng: random.Random) -> str:
    """Return `template` with one alternative of each ``[a|b]``; its ``{slots}`` stay."""
    return _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template)


def expansions(template: str) -> set[str]:
    """Return every text that `expand` can make from `template`."""
    parts = _CHOICE.split(template)  # text, alternatives, text, ...
    options = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    return {"".join(chosen) for chosen in itertools.product(*options)}
