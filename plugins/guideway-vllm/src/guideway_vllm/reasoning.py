"""Reasoning as vLLM's parsers know it: whether a prompt has ended it, and its markers."""

from __future__ import annotations

from typing import Any

from guideway.api import Vocabulary
from guideway.api.reasoning import ReasoningConfig
from guideway.errors import blame

__all__ = ["markers_of", "may_reason"]

THINKING = {"thinking": True, "enable_thinking": True, "reasoning_effort": "high"}
"""Arguments that make chat templates enable thinking, for parsers that have no markers without them."""


def markers_of(parser_class: Any, tokenizer: Any, vocabulary: Vocabulary) -> ReasoningConfig:
    """Return the markers of a reasoning parser; without an end marker if it has none. Raises the parser's errors for a
    tokenizer that lacks them."""
    for template in ({}, THINKING):
        parser = parser_class(tokenizer, chat_template_kwargs=template)
        start, end = getattr(parser, "reasoning_start_str", None), getattr(parser, "reasoning_end_str", None)
        if end:
            found = _marker("start", start, tokenizer, vocabulary) | _marker("end", end, tokenizer, vocabulary)
            # the parser also takes these tokens for the end of the reasoning
            others = frozenset(getattr(parser, "reasoning_end_token_ids", ()))
            return ReasoningConfig(**found, excluded_token_ids=tuple(sorted(others - {*_ids(end, tokenizer)})))
    return ReasoningConfig()


def may_reason(manager: Any, request: Any) -> bool:
    """Return whether the output of a request may begin with reasoning, given its prompt, as vLLM's structured-output
    manager and reasoning parser decide. Raises `PluginError` if the parser fails."""
    bounds = getattr(manager, "_get_constraint_bounds", None)
    with blame("vllm.reasoning_parser", "is_reasoning_end"):
        if bounds is None:  # before 0.32
            return bool(manager._get_constraint_start(request, ()) > 0)
        return bool(bounds(request, ())[1] > 0)


def _marker(which: str, text: str | None, tokenizer: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the settings of one marker: its token id, or its text if it has several tokens and no special one."""
    if not text:
        return {}
    token_ids = _ids(text, tokenizer)
    if len(token_ids) == 1 or any(name and name in text for name in vocabulary.special_tokens.values()):
        return {f"{which}_token_ids": token_ids}
    return {f"{which}_str": text}


def _ids(text: str, tokenizer: Any) -> tuple[int, ...]:
    token_id = tokenizer.get_vocab().get(text)
    return tuple(tokenizer.encode(text, add_special_tokens=False)) if token_id is None else (token_id,)
