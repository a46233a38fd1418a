"""vLLM's own structured-output backends as grammar strategies: per request, several in one batch, none latched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import hookimpl

if TYPE_CHECKING:
    from guideway.api import GrammarStrategy


@hookimpl
def guideway_grammar_strategy(name: str) -> type[GrammarStrategy]:
    from guideway_vllm.stock.backends import STRATEGIES

    return STRATEGIES[name]
