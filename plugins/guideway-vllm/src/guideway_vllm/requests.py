"""From vLLM's sampling parameters to a guideway `Request`.

What vLLM has no field for comes in ``extra_args``, over HTTP ``vllm_xargs``, under flat keys:

* ``guideway.strategy``: the grammar strategy that is to serve the constraint;
* ``guideway.modifiers``: logit modifiers by name, each with its options;
* ``guideway.dialect``: of ``structured_outputs.grammar``, such as ``lark``; without it vLLM's own rule decides;
* ``guideway.tenant``: on whose behalf.

Values that are no strings may be given as JSON, which is all that HTTP carries.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from guideway.api import (
    Choice,
    Constraint,
    Grammar,
    InvalidRequest,
    JsonObject,
    JsonSchema,
    Regex,
    Request,
    SamplingParams,
    StructuralTag,
)

__all__ = ["CARRIER", "GREEDY_BELOW", "carries_only", "is_ours", "request_of"]

PREFIX = "guideway."
KEYS = ("strategy", "modifiers", "dialect", "tenant")
SEPARATOR = re.compile(r"[._:/-]")

LONGEST = 40
"""Characters of a key that may be a slip; comparing takes time, and what it found is remembered."""

ALIKE = 0.8
"""How much of a key's first word, by `difflib`, is as in ``guideway``, for it to be a slip."""

CARRIER = "guideway.carrier."
"""What `_backend` begins with in a request that has modifiers and no constraint. vLLM waits for the tokens of
structured requests, and only these have a carrier for a payload, so it travels as one that allows all."""

GREEDY_BELOW = 1e-5
"""Temperatures vLLM takes for 0."""


def carries_only(params: Any) -> bool:
    """Whether vLLM's sampling parameters have no constraint but the carrier."""
    outputs = params.structured_outputs
    return outputs is None or str(outputs._backend).startswith(CARRIER)


def is_ours(params: Any) -> bool:
    """Whether the request asks for anything guideway serves."""
    return params.structured_outputs is not None or any(map(_is_meant, params.extra_args or ()))


def request_of(
    request_id: str, prompt_token_ids: Sequence[int], params: Any, priority: int = 0, *, samples: bool = True
) -> Request:
    """The request as guideway sees it. Raises `InvalidRequest`, naming the field.

    Without `samples` vLLM draws its tokens, and what says how is left out. Stop tokens are those beside the model's.
    """
    extra = _extra(params.extra_args or {})
    constraint = None if carries_only(params) else _constraint(params.structured_outputs, extra)
    for name in ("strategy", "dialect"):
        if constraint is None and name in extra:
            raise InvalidRequest(f"{PREFIX}{name} is given, but no constraint", field=f"{PREFIX}{name}")
    common: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "seed": None if params.seed is None else params.seed % (1 << 63),
        "stop_token_ids": tuple(params.stop_token_ids or ()),
        "ignore_eos": params.ignore_eos,
        "constraint": constraint,
        "modifiers": _decoded(extra, "modifiers", {}),
    }
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt_token_ids),
        params=SamplingParams(**common, **(_sampling(params, priority) if samples else {})),
        tenant=extra.get("tenant", ""),
    )


def _sampling(params: Any, priority: int) -> dict[str, Any]:
    temperature = 0.0 if params.temperature < GREEDY_BELOW else params.temperature
    return {
        "temperature": temperature,
        "min_tokens": params.min_tokens,
        "top_k": max(0, params.top_k),
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "logit_bias": params.logit_bias or {},
        "stop": tuple(params.stop or ()),
        "n": 1 if temperature == 0 else params.n,
        "logprobs": _count(params.logprobs),
        "prompt_logprobs": _count(params.prompt_logprobs),
        "priority": priority,
    }


def _count(value: int | None) -> int | None:
    """-1 stands for all there are, and how many are returned is vLLM's business."""
    return value if value is None else max(0, value)


def _extra(extra_args: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in extra_args.items():
        if _is_meant(key):
            name = key.removeprefix(PREFIX)
            if name not in KEYS:
                close = difflib.get_close_matches(SEPARATOR.split(name)[-1], KEYS, n=1)
                hint = f"did you mean {PREFIX + close[0]!r}? " if close else ""
                raise InvalidRequest(
                    f"unknown key {key!r}; {hint}known: {', '.join(PREFIX + known for known in KEYS)}", field=key
                )
            found[name] = value
    return found


def _is_meant(key: object) -> bool:
    """Whether a key is one of ours, or is nearly."""
    return isinstance(key, str) and (key.startswith(PREFIX) or (len(key) <= LONGEST and _is_misspelt(key)))


@lru_cache(maxsize=1024)
def _is_misspelt(key: str) -> bool:
    head = SEPARATOR.split(key, maxsplit=1)[0].casefold()
    return difflib.SequenceMatcher(None, head, PREFIX.rstrip(".")).ratio() > ALIKE


def _decoded(extra: Mapping[str, Any], name: str, default: Any) -> Any:
    value = extra.get(name, default)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidRequest(f"{PREFIX}{name} is not JSON: {error}", field=f"{PREFIX}{name}") from error


def _constraint(outputs: Any, extra: Mapping[str, Any]) -> Constraint:
    for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
        if getattr(outputs, name, None):
            raise InvalidRequest(
                f"structured_outputs.{name} is not enforced by guideway's strategies for a single request; leave it "
                "out, and say it in the schema or in the options of the strategy",
                field=f"structured_outputs.{name}",
            )
    strategy = extra.get("strategy")
    if outputs.grammar is None and "dialect" in extra:
        raise InvalidRequest(f"{PREFIX}dialect is given, but no grammar", field=f"{PREFIX}dialect")
    if outputs.json is not None:
        return JsonSchema(outputs.json, strategy=strategy)
    if outputs.json_object is not None:
        if outputs.json_object is not True:
            raise InvalidRequest(
                "structured_outputs.json_object must be true, or left out", field="structured_outputs.json_object"
            )
        return JsonObject(strategy=strategy)
    if outputs.regex is not None:
        return Regex(outputs.regex, strategy=strategy)
    if outputs.choice is not None:
        return Choice(outputs.choice, strategy=strategy)
    if outputs.structural_tag is not None:
        return StructuralTag(outputs.structural_tag, strategy=strategy)
    return Grammar(outputs.grammar, extra.get("dialect") or _dialect(outputs.grammar), strategy=strategy)


def _dialect(grammar: Any) -> str:
    """What vLLM takes it for: its field says nothing of a dialect, and holds either."""
    from vllm.v1.structured_output.utils import grammar_is_likely_lark

    return "lark" if grammar_is_likely_lark(grammar) else "ebnf"
