"""The reference strategy: slow and obvious, the oracle of tests. One class per idea, no optimization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import hookimpl

if TYPE_CHECKING:
    from guideway.api import GrammarStrategy


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    from guideway_conformance.reference.strategy import Strategy

    return Strategy
