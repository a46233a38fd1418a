"""outlines as a grammar strategy for guideway, and its types and terms as constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guideway.api import hookimpl

if TYPE_CHECKING:
    from guideway.api import Constraint, GrammarStrategy

__all__ = ["constraint", "guideway_grammar_strategy"]


@hookimpl
def guideway_grammar_strategy() -> type[GrammarStrategy]:
    from guideway_outlines.strategy import Strategy

    return Strategy


def constraint(output_type: Any, *, strategy: str | None = None) -> Constraint:
    """Make a guideway constraint of an output type of `outlines`: a regex term, a type of ``outlines.types``, a
    Pydantic model, a dataclass, a ``Literal``, an ``Enum`` and so on. `strategy` is `Constraint.strategy`; with None
    any configured strategy may serve it.

    Raises `InvalidGrammar` if outlines does not accept `output_type`, `UnsupportedGrammar` for a schema with a
    ``whitespace_pattern`` (`JsonSchema.whitespace` is a word), `PluginUnavailable` if `outlines` is not installed.
    """
    from guideway_outlines.terms import to_constraint

    return to_constraint(output_type, strategy)
