"""xgrammar as a grammar strategy for guideway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import hookimpl, in_killable_host

if TYPE_CHECKING:
    from guideway.api import GrammarStrategy


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    if in_killable_host():
        from guideway_xgrammar.loading import load_alone

        load_alone()
    from guideway_xgrammar.strategy import Strategy

    return Strategy
