"""Are these sampling parameters ones that can be served? Every answer is an `InvalidRequest` that names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import Any, NoReturn

from guideway.api.types import SamplingParams
from guideway.errors import InvalidRequest, LimitExceeded, contain

__all__ = ["checked_sampling", "is_int", "is_text", "plain", "shown"]

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3
"""Beyond these, logits in float32 overflow or come out equal."""
MIN_REPETITION, MAX_REPETITION = 1e-3, 1e3
MAX_PENALTY = 1e3
MAX_BIAS = 1e30
"""With all of these together, logits in float32 stay finite."""
MAX_LOGPROBS = 1000
"""Of each row; more is a distribution and not a list."""
MAX_SEQUENCES = 1024
"""Of one request."""
MAX_STOP_STRINGS, MAX_STOP_LENGTH = 64, 1000
"""All are looked for after each token, in the one thread that serves all requests. The length is in characters."""


def checked_sampling(params: SamplingParams, vocabulary_size: int) -> SamplingParams:
    """`params` with everything checked but constraint, modifiers and stop token ids, and frozen against later changes
    by its caller; its numbers are Python's own. Raises `InvalidRequest`."""
    params = _in_plain_numbers(params)
    _check_lengths(params)
    _check_temperature(params)
    _number(params, "top_p", lambda p: 0 < p <= 1, "a number above 0 and at most 1")
    _number(params, "min_p", lambda p: 0 <= p <= 1, "a number from 0 to 1")
    _number(params, "typical_p", lambda p: 0 < p <= 1, "a number above 0 and at most 1")
    _number(
        params,
        "repetition_penalty",
        lambda p: MIN_REPETITION <= p <= MAX_REPETITION,
        f"a number from {MIN_REPETITION:g} to {MAX_REPETITION:g}, 1 for no change",
    )
    for name in ("frequency_penalty", "presence_penalty"):
        _number(params, name, lambda p: abs(p) <= MAX_PENALTY, f"a number from {-MAX_PENALTY:g} to {MAX_PENALTY:g}")
    _whole(params, "top_k", 0, None, "0 or -1 for all tokens")
    _whole(params, "priority", -(2**31), 2**31 - 1)
    if params.seed is not None:
        _whole(params, "seed", 0, 2**63 - 1)
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is not None:
            _whole(params, name, 0, min(MAX_LOGPROBS, vocabulary_size), "None for none at all")
    for name in ("ignore_eos", "echo"):
        if not isinstance(getattr(params, name), bool):
            _refuse(params, name, "True or False")
    _check_sequences(params)
    _check_together(params)
    return replace(params, logit_bias=_checked_bias(params, vocabulary_size), stop=_checked_stop(params))


def shown(value: object) -> str:
    """`value` for an error message: short, and whatever it is."""
    try:
        text = repr(value)
    except BaseException as error:  # an int of too many digits, or a stranger's __repr__
        contain(error)
        return f"({type(value).__name__}, too large to show)"
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_int(value: object) -> bool:
    """Whether `value` is a whole number and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value: object) -> bool:
    """Whether `value` is a string that can be written in UTF-8."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain(value: Any) -> Any:
    """A number of any library, such as NumPy's, as Python's own; any other value as it is."""
    if isinstance(value, bool) or type(value) in (int, float) or not isinstance(value, Real):
        return value
    try:
        return int(value) if isinstance(value, Integral) else float(value)
    except BaseException as error:  # a fraction too large for a float, or a stranger's method
        contain(error)
        return value  # whoever checks it refuses it


def _in_plain_numbers(params: SamplingParams) -> SamplingParams:
    values = {field.name: plain(getattr(params, field.name)) for field in fields(params)}
    if is_int(values["top_k"]) and values["top_k"] == -1:  # as in vLLM
        values["top_k"] = 0
    return replace(params, **values)


def _check_lengths(params: SamplingParams) -> None:
    if params.max_tokens is not None:
        _whole(params, "max_tokens", 1, None, "None for the rest of the context")
    _whole(params, "min_tokens", 0, None)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {shown(params.min_tokens)}, more than max_tokens, {shown(params.max_tokens)}",
            field="min_tokens",
        )


def _check_temperature(params: SamplingParams) -> None:
    _number(
        params,
        "temperature",
        lambda t: t == 0 or MIN_TEMPERATURE <= t <= MAX_TEMPERATURE,
        f"0 (greedy) or a number from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}",
    )


def _check_sequences(params: SamplingParams) -> None:
    _whole(params, "n", 1, None)
    if params.best_of is not None:
        _whole(params, "best_of", 1, None, "None for n")
        if params.best_of < params.n:
            raise InvalidRequest(
                f"best_of is {shown(params.best_of)}, less than n, {shown(params.n)}, to choose from",
                field="best_of",
            )
    field = "n" if params.best_of is None else "best_of"
    if params.num_sequences > MAX_SEQUENCES:
        raise LimitExceeded(
            f"{field} is {shown(params.num_sequences)}, but one request has at most {MAX_SEQUENCES} sequences",
            field=field,
        )
    if params.num_sequences > 1 and params.temperature == 0:
        raise InvalidRequest(
            f"{field} is {params.num_sequences}, but at temperature 0 (greedy) all sequences are the same; set a "
            "temperature above 0, such as 1.0",
            field=field,
        )


def _check_together(params: SamplingParams) -> None:
    if params.typical_p < 1 and params.temperature == 0:
        raise InvalidRequest(
            "typical_p does nothing at temperature 0 (greedy), which takes the most likely token, typical or not; set "
            "a temperature above 0, such as 1.0, or leave it out",
            field="typical_p",
        )
    if params.ignore_eos and params.constraint is not None:
        raise InvalidRequest(
            "ignore_eos and a constraint contradict each other: after the end of the grammar only a stop token is "
            "allowed; leave out one of the two",
            field="ignore_eos",
        )


def _checked_bias(params: SamplingParams, vocabulary_size: int) -> dict[int, float]:
    if params.logit_bias is None:
        return {}
    if not isinstance(params.logit_bias, Mapping):
        _refuse(params, "logit_bias", "a mapping of token ids to numbers")
    bias = {plain(token_id): plain(value) for token_id, value in params.logit_bias.items()}
    for token_id, value in bias.items():
        if not is_int(token_id) or not 0 <= token_id < vocabulary_size:
            raise InvalidRequest(
                f"logit_bias speaks of token id {shown(token_id)}, which is not in the vocabulary (whole numbers from "
                f"0 to {vocabulary_size - 1})",
                field="logit_bias",
            )
        if not _is_number(value) or not (abs(value) <= MAX_BIAS or value == -math.inf):
            raise InvalidRequest(
                f"logit_bias of token {token_id} must be a number from {-MAX_BIAS:g} to {MAX_BIAS:g}, or -inf to ban "
                f"the token, not {shown(value)}",
                field="logit_bias",
            )
    return {token_id: float(value) for token_id, value in bias.items() if value != 0}


def _checked_stop(params: SamplingParams) -> tuple[str, ...]:
    strings = params.stop
    if strings is None:
        return ()
    if isinstance(strings, str):  # as in OpenAI's API; a list would be made of its characters
        strings = (strings,)
    if not isinstance(strings, list | tuple):
        _refuse(params, "stop", "a string or a list of strings")
    if len(strings) > MAX_STOP_STRINGS:
        raise LimitExceeded(
            f"stop has {len(strings)} strings, but one request has at most {MAX_STOP_STRINGS}", field="stop"
        )
    for text in strings:
        if not text or not is_text(text):
            raise InvalidRequest(
                f"stop must hold strings of at least one character and without lone surrogates, not {shown(text)}",
                field="stop",
            )
        if len(text) > MAX_STOP_LENGTH:
            raise LimitExceeded(
                f"a stop string has {len(text)} characters, but it may have at most {MAX_STOP_LENGTH}", field="stop"
            )
    return tuple(strings)


def _number(params: SamplingParams, name: str, is_right: Any, wanted: str) -> None:
    value = getattr(params, name)
    if not _is_number(value) or not is_right(value):  # no comparison is true of NaN
        _refuse(params, name, wanted)


def _whole(params: SamplingParams, name: str, least: int, most: int | None, otherwise: str = "") -> None:
    value = getattr(params, name)
    if not is_int(value) or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        _refuse(params, name, f"a whole number {bounds}{otherwise and f', or {otherwise}'}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuse(params: SamplingParams, name: str, wanted: str) -> NoReturn:
    raise InvalidRequest(f"{name} must be {wanted}, not {shown(getattr(params, name))}", field=name)
