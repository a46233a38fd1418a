"""Measures of a grammar, taken in one pass over its tokens. Strategies check its syntax."""

from __future__ import annotations

import json
import re

from guideway.runtime.constraints.guard.json_schema import measure_json, measure_pattern, measure_schema
from guideway.runtime.constraints.guard.measures import Measures, Place
from guideway.runtime.constraints.guard.references import Block, Reference, follow
from guideway.runtime.constraints.guard.satisfiable import check_embedded
from guideway.runtime.constraints.guard.shapes import Shape

__all__ = ["measure_grammar"]

_COMMON = r"""
    | (?P<string>"(?:[^"\\\n]++|\\.)*+"?)
    | (?P<bounds>(?:\{\s*+(?=[\d,])|~\s*+(?=\d))(?P<least>\d++)?+\s*+(?P<range>(?:,|\.\.)\s*+(?P<most>\d++)?+\s*+)?+\}?)
    | (?P<name>[A-Za-z_][\w.-]*+)
    | (?P<skip>\s++)
    | (?P<other>.)
"""
_EBNF = re.compile(
    r"(?P<comment>\#[^\n]*+) | (?P<rule>(?P<ruled>[A-Za-z_][\w.-]*+)[ \t]*+::=)"
    r"| (?P<class>\[(?:[^\]\\\n]++|\\.)*+\]?)" + _COMMON,
    re.VERBOSE | re.DOTALL,
)
_LARK = re.compile(
    r"(?P<comment>//[^\n]*+)"
    r"| (?P<rule>^[ \t]*+[?!]*+(?P<ruled>[A-Za-z_]\w*+)(?:\.-?\d++)?+(?:\[[^\]\n]*+\]|\{[^}\n]*+\})?+[ \t]*+:)"
    r"| (?P<json>%json\s*+(?=\{)) | (?P<regex>/(?:[^/\\\n]++|\\.)++/[a-z]*+)" + _COMMON,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_DECODER = json.JSONDecoder()


def measure_grammar(text: str, dialect: str, measures: Measures, where: str = "") -> None:
    """Measure a grammar; `where` is a prefix for places. An unknown dialect is read as the known one that it
    resembles."""
    lark = dialect == "lark" or (dialect not in ("ebnf", "gbnf") and "::=" not in text)
    tokens = _LARK if lark else _EBNF
    at = measures.at
    shape, own = Shape(), Block()
    rules: dict[str, int] = {}
    blocks: list[Block] = [own]
    names: list[tuple[Block, str]] = []
    begin, position, deepest = 0, 0, 0

    def place(offset: int) -> Place:
        return lambda: (
            f"{where}line {text.count(chr(10), 0, offset) + 1}, column {offset - text.rfind(chr(10), 0, offset)}"
        )

    def end_of_rule() -> None:
        nonlocal deepest
        shape.end()
        here = place(begin)
        at("depth", shape.depth, here)
        at("alternatives", shape.alternatives, here)
        at("repetition", shape.repetition, here)
        at("stars", shape.whole.stars, here)
        at("nested_stars", shape.whole.star_depth, here)
        at("repetitions", shape.whole.product, here)

    at("nul", text.count("\0"), place(max(0, text.find("\0"))))
    while (token := tokens.match(text, position)) is not None:
        start, position = token.span()
        kind = token.lastgroup
        if kind == "skip" or kind == "comment":
            continue
        measures.count(1, place(start))
        if kind == "rule":
            end_of_rule()
            shape, own, begin = Shape(), Block(), start
            rules.setdefault(token["ruled"], len(blocks))
            blocks.append(own)
        elif kind == "name":
            shape.atom()
            names.append((own, token[0]))
        elif kind == "string":
            measures.literal(position - start, place(start))
            shape.run(max(1, position - start - 2))
        elif kind == "class":
            shape.atom()
        elif kind == "regex":
            shape.atom(measure_pattern(text[start + 1 : text.rindex("/", start, position)], measures, place(start)))
        elif kind == "bounds":
            shape.repeat_between(token["least"], token["most"], is_open=bool(token["range"]))
        elif kind == "json":
            shape.atom()
            try:
                schema, position = _DECODER.raw_decode(text, position)
            except (ValueError, RecursionError):
                continue  # measure its braces one by one
            line = place(start)()
            measure_json(schema, measures, lambda line=line: line)  # type: ignore[misc]
            measure_schema(schema, measures, (None, line))
            check_embedded(schema, (None, line))
        else:
            match token[0]:
                case "(" | "[" | "{":
                    shape.open()
                case ")" | "]" | "}":
                    shape.close()
                case "|":
                    shape.alternative()
                case "*" | "+":
                    shape.repeat(None)
                case "?":
                    shape.repeat(1)
    end_of_rule()
    at("rules", len(rules), where or "line 1, column 1")
    for block, name in names:
        if (target := rules.get(name)) is not None:
            block.references.append(Reference(target))
    follow(blocks)
    for block in blocks:
        at("chain", block.levels, where or "line 1, column 1")
