"""The reasoning of a model, as vLLM's reasoning parsers know it: whether a prompt has ended it, and its markers."""

from __future__ import annotations

from typing import Any

from guideway.api import Vocabulary
from guideway.api.reasoning import ReasoningConfig
from guideway.errors import blame

__all__ = ["markers_of", "may_reason"]

THINKING = {"thinking": True, "enable_thinking": True, "reasoning_effort": "high"}
"""The arguments by which chat templates have a model think, for parsers that know no markers without them."""


def markers_of(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> ReasoningConfig:
    """Return the markers that a reasoning parser names; none of the end where it names none. Raises what the parser
    raises for a tokenizer that lacks them."""
    for template in ({}, THINKING):
        parser = parser_class(tokenizer, chat_template_kwargs=template)
        start, end = getattr(parser, "reasoning_start_str", None), getattr(parser, "reasoning_end_str", None)
        if end:
            found = _marker("start", start, tokenizer, vocabulary) | _marker("end", end, tokenizer, vocabulary)
            # it takes the reasoning for ended there without the marker
            others = frozenset(getattr(parser, "reasoning_end_token_ids", ()))
            return ReasoningConfig(**found, excluded_token_ids=tuple(sorted(others - {*_ids(end, tokenizer)})))
    return ReasoningConfig()


def may_reason(manager: Any, request: Any) -> bool:
    """Return whether the output of a request may begin with reasoning, as vLLM's structured-output manager and the
    parser of that request see its prompt. Raises `PluginError` if the parser fails."""
    bounds = getattr(manager, "_get_constraint_bounds", None)
    with blame("vllm.reasoning_parser", "is_reasoning_end"):
        if bounds is None:  # before 0.32
            return bool(manager._get_constraint_start(request, ()) > 0)
        return bool(bounds(request, ())[1] > 0)


def _marker(which: str, text: str | None, tokenizer: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    """The settings of one marker: token ids, as the parser looks for, or a text where it is one of several tokens."""
    if not text:
        return {}
    token_ids = _ids(text, tokenizer)
    if len(token_ids) == 1 or any(name and name in text for name in vocabulary.special_tokens.values()):
        return {f"{which}_token_ids": token_ids}
    return {f"{which}_str": text}


def _ids(text: str, tokenizer: Any) -> tuple[int, ...]:
    token_id = tokenizer.get_vocab().get(text)
    return tuple(tokenizer.encode(text, add_special_tokens=False)) if token_id is None else (token_id,)
