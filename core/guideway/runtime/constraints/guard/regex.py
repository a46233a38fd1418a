"""Shape of a regular expression, measured in one pass over its characters. Strategies check its syntax."""

from __future__ import annotations

import re

from guideway.runtime.constraints.guard.measures import Measures, Place
from guideway.runtime.constraints.guard.shapes import Shape

__all__ = ["shape_of"]

# possessive quantifiers, so that no text causes backtracking
_TOKEN = re.compile(
    r"""(?P<run>[^\\\[\](){}*+?|]++)
      | (?P<bounds>\{(?P<least>\d*+)(?P<comma>,(?P<most>\d*+))?\})
      | (?P<open>\((?:\?(?:[:=!>|]|<[=!]|P?<\w++>|[a-zA-Z-]*+:?))?)
      | (?P<escape>\\(?:[pPx]\{[^}\n]{0,60}\}|[xu][0-9a-fA-F]*+|.?))
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_IN_CLASS = re.compile(r"\^?\]?(?:[^\]\\\[]++|\\.|\[)*+(?:\]|$)", re.DOTALL)


def shape_of(pattern: str, measures: Measures, place: Place) -> Shape:
    """Return the shape of `pattern`, counting its terms as nodes."""
    shape, at, terms = Shape(), 0, 0
    while (token := _TOKEN.match(pattern, at)) is not None:
        at = token.end()
        terms += 1
        if terms == 1000:
            measures.count(terms, place)
            terms = 0
        kind = token.lastgroup
        if kind == "run":
            shape.run(at - token.start())
        elif kind == "bounds":
            shape.repeat_between(token["least"], token["most"], is_open=bool(token["comma"]))
        elif kind == "open":
            shape.open()
        elif kind == "escape":
            shape.atom()
        else:
            match token[0]:
                case ")":
                    shape.close()
                case "|":
                    shape.alternative()
                case "*" | "+":
                    shape.repeat(None)
                case "?":
                    shape.repeat(1)
                case "[":
                    inside = _IN_CLASS.match(pattern, at)
                    at = len(pattern) if inside is None else inside.end()
                    shape.depth = max(shape.depth, 1 + pattern.count("[", token.end(), at))
                    shape.atom()
                case _:
                    shape.atom()
    measures.count(terms, place)
    shape.end()
    return shape
