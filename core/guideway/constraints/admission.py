"""Is this request one that can be served? Every answer is an `InvalidRequest` that names the field."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Sequence

from guideway.api.errors import InvalidRequest, LimitExceeded
from guideway.api.hooks import ValidationContext
from guideway.api.json_schema import check_schema
from guideway.api.types import Constraint, JsonSchema, Request, SamplingParams
from guideway.api.vocabulary import Vocabulary

__all__ = ["Validator", "check_request", "run_validators"]

Validator = Callable[[Request, ValidationContext], None]


def check_request(request: Request, vocabulary: Vocabulary, context: ValidationContext) -> None:
    """Check everything that needs no plugin. Raises `InvalidRequest`."""
    _check_prompt(request, len(vocabulary), context.max_model_len)
    _check_params(request.params, len(vocabulary), context)
    if request.params.constraint is not None:
        _check_constraint(request.params.constraint, context)


def run_validators(validators: Sequence[tuple[str, Validator]], request: Request, context: ValidationContext) -> None:
    """Ask every validation hook; one that breaks refuses the request too, because what it guards is not known to
    hold."""
    for plugin, validate in validators:
        try:
            validate(request, context)
        except InvalidRequest:
            raise
        except Exception as error:
            raise InvalidRequest(
                f"validator {plugin} failed, so the request is refused: {type(error).__name__}: {error}",
                field="request",
            ) from error


def _check_prompt(request: Request, vocabulary_size: int, max_model_len: int) -> None:
    prompt = request.prompt_token_ids
    if not prompt:
        raise InvalidRequest("the prompt is empty; it needs at least one token", field="prompt")
    bad = next((i for i in prompt if not _is_int(i) or not 0 <= i < vocabulary_size), None)
    if bad is not None:
        raise InvalidRequest(
            f"prompt token id {bad!r} is not in the vocabulary (ids 0 to {vocabulary_size - 1})", field="prompt"
        )
    if len(prompt) >= max_model_len:
        raise LimitExceeded(
            f"the prompt has {len(prompt)} tokens, but the context holds {max_model_len} with room for at least one "
            f"new one; shorten it to {max_model_len - 1}",
            field="prompt",
        )


def _check_params(params: SamplingParams, vocabulary_size: int, context: ValidationContext) -> None:
    if params.max_tokens is not None and (not _is_int(params.max_tokens) or params.max_tokens < 1):
        raise InvalidRequest(
            f"max_tokens must be a whole number of at least 1, or None for the rest of the context; "
            f"not {params.max_tokens!r}",
            field="max_tokens",
        )
    temperature = params.temperature
    if (
        isinstance(temperature, bool)
        or not isinstance(temperature, int | float)
        or not math.isfinite(temperature)
        or temperature < 0
    ):
        raise InvalidRequest(
            f"temperature must be a finite number of at least 0 (0: greedy), not {temperature!r}", field="temperature"
        )
    if 0 < temperature < 1e-3:
        raise InvalidRequest(
            f"temperature {temperature!r} is too close to 0 to divide by; use 0 for greedy or at least 0.001",
            field="temperature",
        )
    if params.seed is not None and (not _is_int(params.seed) or not 0 <= params.seed < 2**63):
        raise InvalidRequest(f"seed must be a whole number from 0 to 2**63 - 1, not {params.seed!r}", field="seed")
    if isinstance(params.stop_token_ids, str) or not all(
        _is_int(i) and 0 <= i < vocabulary_size for i in params.stop_token_ids
    ):
        raise InvalidRequest(
            f"stop_token_ids must be token ids from 0 to {vocabulary_size - 1}, not {params.stop_token_ids!r}",
            field="stop_token_ids",
        )
    for name in params.modifiers:
        if name not in context.modifiers:
            raise InvalidRequest(
                f"no logit modifier {name!r} is configured{_close(name, context.modifiers)}; "
                f"configured: {', '.join(context.modifiers) or 'none'}",
                field="modifiers",
            )


def _check_constraint(constraint: Constraint, context: ValidationContext) -> None:
    if not isinstance(constraint, Constraint):
        raise InvalidRequest(
            f"constraint must be a JsonSchema, JsonObject, Regex, Choice, Grammar or StructuralTag, not "
            f"{type(constraint).__name__}",
            field="constraint",
        )
    if constraint.strategy is not None and constraint.strategy not in context.grammars:
        raise InvalidRequest(
            f"no grammar strategy {constraint.strategy!r} is configured"
            f"{_close(constraint.strategy, context.grammars)}; configured: {', '.join(context.grammars) or 'none'}",
            field="constraint.strategy",
        )
    source = constraint.source()
    if isinstance(constraint, JsonSchema):
        check_schema(json.loads(source))


def _close(name: object, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
