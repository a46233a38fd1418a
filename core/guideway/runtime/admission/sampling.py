"""Checks whether sampling parameters can be served. Every refusal is an `InvalidRequest` that names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, get_type_hints

from guideway.api.options import Range, fits, is_int, mismatch, short_repr
from guideway.api.types import SamplingParams
from guideway.errors import InvalidRequest, LimitExceeded, contain

__all__ = ["ANY_VOCABULARY", "is_text", "python_number", "validated"]

ANY_VOCABULARY = 2**31
"""A number larger than the size of any vocabulary, for checks before a model is loaded."""

MAX_BIAS = 1e30
"""With this bias and all penalties, at any temperature, float32 logits stay finite."""
MAX_LOGPROBS = 1000
"""Most log-probabilities per row."""
MAX_SEQUENCES = 1024
"""Most sequences of one request."""
MAX_STOP_STRINGS, MAX_STOP_LENGTH = 64, 1000
"""Limits of stop strings (number, characters of each): one thread searches for all of them after each token."""

NOT_ALONE = ("stop_token_ids", "constraint", "modifiers")
"""Parameters that admission checks against the vocabulary or the configuration."""
DEFAULTS = {field.name: field.default for field in fields(SamplingParams)}


def validated(params: SamplingParams, vocabulary_size: int) -> SamplingParams:
    """Return `params` validated (except constraint, modifiers and stop token ids), with Python's number types, and
    frozen against later changes by the caller. Raises `InvalidRequest`."""
    # check only values that differ from their defaults: checking all takes longer than a token
    given = {name: value for name, default in DEFAULTS.items() if (value := getattr(params, name)) is not default}
    numbers = {name: number for name, value in given.items() if (number := python_number(value)) is not value}
    if is_int(top_k := numbers.get("top_k", params.top_k)) and top_k == -1:  # as in vLLM
        numbers["top_k"] = 0
    if numbers:
        params = replace(params, **numbers)
    for name, hint in _types(vocabulary_size).items():
        if name in given and (wrong := mismatch(name, getattr(params, name), hint)):
            raise InvalidRequest(wrong, field=name)
    _check_sequences(params)
    _check_together(params)
    bias, stop = _valid_bias(params, vocabulary_size), _valid_stop(params)
    return replace(params, logit_bias=bias, stop=stop)


@cache
def _types(vocabulary_size: int) -> dict[str, Any]:
    """Return the types of all parameters that can be checked one by one."""
    most = min(MAX_LOGPROBS, vocabulary_size)
    count = Annotated[
        Annotated[int, Range(0, most)] | None, f"a whole number from 0 to {most}, or None for none at all"
    ]
    hints = get_type_hints(SamplingParams, include_extras=True) | {
        "logprobs": count,
        "prompt_logprobs": count,
        "stop": Annotated[str | tuple[Any, ...] | None, "a string or a list of strings"],
        "logit_bias": Annotated[Mapping[Any, Any] | None, "a mapping of token ids to numbers"],
    }
    return {name: hint for name, hint in hints.items() if name not in NOT_ALONE}


def is_text(value: object) -> bool:
    """Return whether `value` is a string that can be written in UTF-8."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def python_number(value: Any) -> Any:
    """Return a number of any library, such as NumPy's, as Python's int or float, and any other value unchanged."""
    if isinstance(value, bool) or type(value) in (int, float) or not isinstance(value, Real):
        return value
    try:
        return int(value) if isinstance(value, Integral) else float(value)
    except BaseException as error:  # a fraction too large for a float, or foreign code
        contain(error)
        return value  # the type check refuses it


def _check_sequences(params: SamplingParams) -> None:
    if params.best_of is not None and params.best_of < params.n:
        raise InvalidRequest(
            f"best_of is {short_repr(params.best_of)}, but must be at least n, which is {short_repr(params.n)}",
            field="best_of",
        )
    field = "n" if params.best_of is None else "best_of"
    if params.num_sequences > MAX_SEQUENCES:
        raise LimitExceeded(
            f"{field} is {short_repr(params.num_sequences)}, but one request has at most {MAX_SEQUENCES} sequences",
            field=field,
        )
    if params.num_sequences > 1 and params.temperature == 0:
        raise InvalidRequest(
            f"{field} is {params.num_sequences}, but at temperature 0 (greedy) all sequences are the same; set a "
            "temperature above 0, such as 1.0",
            field=field,
        )


def _check_together(params: SamplingParams) -> None:
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {short_repr(params.min_tokens)}, but may be at most max_tokens, which is "
            f"{short_repr(params.max_tokens)}",
            field="min_tokens",
        )
    if params.typical_p < 1 and params.temperature == 0:
        raise InvalidRequest(
            "typical_p has no effect at temperature 0 (greedy); set a temperature above 0, such as 1.0, or remove "
            "typical_p",
            field="typical_p",
        )
    if params.max_retries and params.temperature == 0:
        raise InvalidRequest(
            f"max_retries is {params.max_retries}, but at temperature 0 (greedy) the same output is drawn again; set a "
            "temperature above 0, such as 1.0",
            field="max_retries",
        )
    if params.logprobs_mode != "raw" and params.logprobs is None:
        raise InvalidRequest(
            f"logprobs_mode is {params.logprobs_mode!r}, but no log-probabilities are asked for; set logprobs, such as "
            "to 0, or remove logprobs_mode",
            field="logprobs_mode",
        )
    if params.ignore_eos and params.constraint is not None:
        raise InvalidRequest(
            "ignore_eos and a constraint contradict each other, because after the end of the grammar only a stop token "
            "is allowed; remove one of the two",
            field="ignore_eos",
        )


def _valid_bias(params: SamplingParams, vocabulary_size: int) -> dict[int, float]:
    if params.logit_bias is None:
        return {}
    bias = {python_number(token_id): python_number(value) for token_id, value in params.logit_bias.items()}
    for token_id, value in bias.items():
        if not is_int(token_id) or not 0 <= token_id < vocabulary_size:
            raise InvalidRequest(
                f"logit_bias has the token id {short_repr(token_id)}, which is not in the vocabulary (whole numbers "
                f"from 0 to {vocabulary_size - 1})",
                field="logit_bias",
            )
        if not fits(value, float) or not (abs(value) <= MAX_BIAS or value == -math.inf):
            raise InvalidRequest(
                f"logit_bias of token {token_id} must be a number from {-MAX_BIAS:g} to {MAX_BIAS:g}, or -inf to ban "
                f"the token, not {short_repr(value)}",
                field="logit_bias",
            )
    return {token_id: float(value) for token_id, value in bias.items() if value != 0}


def _valid_stop(params: SamplingParams) -> tuple[str, ...]:
    strings = params.stop
    if strings is None:
        return ()
    if isinstance(strings, str):  # as in OpenAI's API; otherwise its characters would be taken for a list
        strings = (strings,)
    if len(strings) > MAX_STOP_STRINGS:
        raise LimitExceeded(
            f"stop has {len(strings)} strings, but one request has at most {MAX_STOP_STRINGS}", field="stop"
        )
    for text in strings:
        if not text or not is_text(text):
            raise InvalidRequest(
                f"stop must hold strings of at least one character and without lone surrogates, not {short_repr(text)}",
                field="stop",
            )
        if len(text) > MAX_STOP_LENGTH:
            raise LimitExceeded(
                f"a stop string has {len(text)} characters, but it may have at most {MAX_STOP_LENGTH}", field="stop"
            )
    return tuple(strings)
