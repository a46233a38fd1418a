"""lm-format-enforcer as a grammar strategy for guideway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import hookimpl

if TYPE_CHECKING:
    from guideway.api import GrammarStrategy


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    from guideway_lmfe.strategy import Strategy

    return Strategy
