"""Tokens that a constrained request bans through vLLM's parameters. guideway's masks exclude them, so that no row
becomes empty."""

from __future__ import annotations

import copy
import math
from typing import Any

from guideway.api import InvalidRequest
from guideway.runtime.constraints.bans import Bans

__all__ = ["bans_of", "without_bans"]

BAN = -100.0
"""Bias at or below which a token is banned, as in OpenAI's API. vLLM's server accepts none below it."""


def bans_of(params: Any) -> Bans:
    """Return the bans of vLLM's sampling parameters. Raises `InvalidRequest` for a bias of NaN or +inf."""
    bias = params.logit_bias or {}
    for token_id, value in bias.items():
        if math.isnan(value) or value == math.inf:
            raise InvalidRequest(
                f"logit_bias of token {token_id} is {value}, which beside a constraint leaves nothing to draw from; "
                "give a finite one, or -inf for a ban",
                field="logit_bias",
            )
    allowed = params.allowed_token_ids
    return Bans(
        logit_bias=frozenset(token_id for token_id, value in bias.items() if value <= BAN),
        allowed_token_ids=None if allowed is None else frozenset(allowed),
        bad_words=tuple(map(tuple, params.bad_words_token_ids or ())),
        min_tokens=params.min_tokens,
    )


def without_bans(params: Any) -> Any:
    """Return a copy of vLLM's sampling parameters without bans, for its draw after the masks."""
    bare = copy.copy(params)
    bare.allowed_token_ids = None
    bare.bad_words, bare._bad_words_token_ids = [], None
    bare.logit_bias = {i: value for i, value in (params.logit_bias or {}).items() if value > BAN} or None
    if getattr(params, "repetition_detection", None) is None:  # repetition detection starts after `min_tokens`
        bare.min_tokens = 0
    return bare
