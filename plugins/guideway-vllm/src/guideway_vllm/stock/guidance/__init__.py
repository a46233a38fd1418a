"""The component ``grammar.vllm_guidance``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import hookimpl

if TYPE_CHECKING:
    from guideway.api import GrammarStrategy


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    from guideway_vllm.stock.guidance.backend import Guidance

    return Guidance
