"""Conversion of vLLM's sampling parameters to a guideway `Request`.

Parameters that vLLM has no field for are in ``extra_args``, over HTTP ``vllm_xargs``, under flat keys:

* ``guideway.strategy``: the grammar strategy for the constraint;
* ``guideway.modifiers``: logit modifiers by name, each with its options;
* ``guideway.dialect``: of ``structured_outputs.grammar``, such as ``lark``; without it vLLM's own rule decides;
* ``guideway.whitespace``: between JSON tokens, a value of `guideway.api.Whitespace`;
* ``guideway.properties_order``: of the objects of a JSON schema, a value of `guideway.api.PropertiesOrder`;
* ``guideway.on_unenforced``: policy for constraints that cannot be enforced in full, a value of
  `guideway.api.OnUnenforced`;
* ``guideway.close``: whether to complete the constraint within the token budget, true or false;
* ``guideway.records``: whether to record what each token is drawn from, true or false;
* ``guideway.tenant``: the tenant that the request belongs to.

Values that are not strings may be given as JSON, since HTTP carries only strings.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast, get_args

from guideway.api import (
    Choice,
    Constraint,
    Grammar,
    GuidewayError,
    InvalidRequest,
    JsonObject,
    JsonSchema,
    OnUnenforced,
    Regex,
    Request,
    SamplingParams,
    StructuralTag,
    UnsupportedCapability,
)
from guideway.api.types import strict_json
from guideway.runtime.admission.open_requests import ShortBudget
from guideway.runtime.constraints.guard.guard import Guard, check_bytes

__all__ = [
    "CARRIER",
    "ON_UNENFORCED_KEY",
    "asks_of_beams",
    "carries_only",
    "constraint_to_check",
    "is_bearable",
    "is_ours",
    "is_strict",
    "request_of",
]

PREFIX = "guideway."
KEYS = (
    *("strategy", "modifiers", "dialect", "whitespace", "properties_order", "on_unenforced", "close", "short_budget"),
    *("records", "tenant"),
)
ORDER_KEY = f"{PREFIX}properties_order"
WHITESPACE_KEY = f"{PREFIX}whitespace"
ON_UNENFORCED_KEY = f"{PREFIX}on_unenforced"
SHORT_BUDGET_KEY = f"{PREFIX}short_budget"
SEPARATOR = re.compile(r"[._:/-]")

LONGEST = 40
"""Most characters of a key that may be misspelt; comparing takes time, and results are cached."""

ALIKE = 0.8
"""Similarity (by `difflib`) to ``guideway`` from which the first word of a key counts as misspelt."""

CARRIER = "guideway.carrier."
"""Prefix of `_backend` in a request with modifiers and no constraint. vLLM attaches payloads only to structured
requests, and waits for the tokens of these, so such a request gets a constraint that allows everything."""

SAME = ("min_tokens", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
"""Sampling parameters that vLLM has with the same name and meaning."""

GREEDY_BELOW = 1e-5
"""Temperatures below this are 0 in vLLM."""


def carries_only(params: Any) -> bool:
    """Return whether vLLM's sampling parameters have no constraint but the carrier."""
    outputs = params.structured_outputs
    return outputs is None or str(outputs._backend).startswith(CARRIER)


def is_bearable(outputs: Any, limits: Mapping[str, int]) -> bool:
    """Return whether ``structured_outputs`` are a constraint within a library's limits."""
    try:
        constraint = _constraint(outputs, {})
        check_bytes(constraint, [limits])
        return Guard(constraint, {"": limits}).refusal("") is None
    except GuidewayError:
        return False


def is_ours(params: Any) -> bool:
    """Return whether the request uses any feature of guideway."""
    return params.structured_outputs is not None or any(map(_is_meant, params.extra_args or ()))


def request_of(
    request_id: str,
    prompt_token_ids: Sequence[int],
    params: Any,
    priority: int = 0,
    *,
    samples: bool = True,
    may_reason: bool = False,
) -> Request:
    """Return the guideway request. Raises `InvalidRequest`, naming the field.

    The output begins with the constraint, unless it `may_reason` first. Without `samples` vLLM draws the tokens, unless
    they are recorded, and sampling parameters are left out. Stop tokens do not include the model's.
    """
    extra = _extra(params.extra_args or {})
    samples = samples or _switch(extra, "records", default=False)
    constraint = None if carries_only(params) else _constraint(params.structured_outputs, extra)
    for name in ("strategy", "dialect", "whitespace", "properties_order", "on_unenforced", "close", "short_budget"):
        if constraint is None and name in extra:
            raise InvalidRequest(f"{PREFIX}{name} is given, but no constraint", field=f"{PREFIX}{name}")
    common: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "seed": None if params.seed is None else params.seed % (1 << 63),
        "stop_token_ids": tuple(params.stop_token_ids or ()),
        "stop": () if constraint is None and not samples else tuple(params.stop or ()),
        "ignore_eos": params.ignore_eos,
        "constraint": constraint,
        "on_unenforced": extra.get("on_unenforced"),
        "close": _switch(extra, "close", default=True),
        "reasoning": None if may_reason else False,
        "modifiers": _decode(extra, "modifiers", {}),
        "records": _switch(extra, "records", default=False),
    }
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt_token_ids),
        params=SamplingParams(**common, **(_sampling(params, priority) if samples else {})),
        tenant=extra.get("tenant", ""),
    )


def constraint_to_check(params: Any, default: OnUnenforced) -> JsonSchema | JsonObject | None:
    """Return the constraint to check the outputs against, if the request or the operator's `default` asks for it. None
    also for a request that will be refused."""
    wanted = (params.extra_args or {}).get(ON_UNENFORCED_KEY, default)
    if wanted != "check" or carries_only(params):
        return None
    try:
        constraint = _constraint(params.structured_outputs, _extra(params.extra_args or {})).frozen()
    except GuidewayError:
        return None
    return constraint if isinstance(constraint, JsonSchema | JsonObject) else None


def short_budget_of(params: Any) -> ShortBudget | None:
    """Return what becomes of a request whose limit no output fits; None: what the operator chose."""
    value = (params.extra_args or {}).get(SHORT_BUDGET_KEY)
    if value is not None and value not in get_args(ShortBudget):
        wanted = ", ".join(map(repr, get_args(ShortBudget)))
        raise InvalidRequest(f"{SHORT_BUDGET_KEY} must be one of {wanted}, not {value!r}", field=SHORT_BUDGET_KEY)
    return cast("ShortBudget | None", value)


def requires_call(request: Any) -> bool:
    """Return whether an OpenAI request requires a tool call: a part of one is of no use."""
    choice = getattr(request, "tool_choice", None)
    choice = getattr(choice, "mode", choice)  # of a list of allowed tools
    return bool(getattr(request, "tools", None)) and choice not in (None, "none", "auto")


def is_strict(request: Any) -> bool:
    """Return whether an OpenAI request sets ``strict: true`` in its ``response_format``, or in ``text.format``."""
    if (response_format := getattr(request, "response_format", None)) is not None:
        said = getattr(response_format, "json_schema", None)
    else:
        said = getattr(getattr(request, "text", None), "format", None)
    return getattr(said, "strict", None) is True


def asks_of_beams(request: Any) -> str | None:
    """Return the field of an OpenAI request that a beam search would ignore, or None."""
    if any(map(_is_meant, request.vllm_xargs or ())):
        return "vllm_xargs"
    if request.extract_structured_outputs() is None:
        return None
    if getattr(request, "tools", None) and request.tool_choice != "none":
        return "tools"
    return "structured_outputs" if request.response_format is None else "response_format"


def _switch(extra: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = _decode(extra, name, default)
    if not isinstance(value, int | float) or value not in (0, 1):  # vLLM's server reads false in `vllm_xargs` as 0
        raise InvalidRequest(f"{PREFIX}{name} must be true or false, not {value!r}", field=f"{PREFIX}{name}")
    return bool(value)


def _sampling(params: Any, priority: int) -> dict[str, Any]:
    temperature = 0.0 if params.temperature < GREEDY_BELOW else params.temperature
    return {name: getattr(params, name) for name in SAME} | {
        "temperature": temperature,
        "top_k": max(0, params.top_k),
        "logit_bias": params.logit_bias or {},
        "n": 1 if temperature == 0 else params.n,
        "logprobs": _count(params.logprobs),
        "prompt_logprobs": _count(params.prompt_logprobs),
        "priority": priority,
    }


def _count(value: int | None) -> int | None:
    """Return `value` with -1, which means all, as 0: vLLM decides how many it returns."""
    return value if value is None else max(0, value)


def _extra(extra_args: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in extra_args.items():
        if _is_meant(key):
            name = key.removeprefix(PREFIX)
            if name == "max_retries":
                raise UnsupportedCapability(
                    f"{key} cannot be had here: vLLM draws no output again; ask again, with another seed", field=key
                )
            if name not in KEYS:
                close = difflib.get_close_matches(SEPARATOR.split(name)[-1], KEYS, n=1)
                hint = f"did you mean {PREFIX + close[0]!r}? " if close else ""
                raise InvalidRequest(
                    f"unknown key {key!r}; {hint}known: {', '.join(PREFIX + known for known in KEYS)}", field=key
                )
            found[name] = value
    return found


def _is_meant(key: object) -> bool:
    """Return whether a key is one of guideway's, or resembles one."""
    return isinstance(key, str) and (key.startswith(PREFIX) or (len(key) <= LONGEST and _is_misspelt(key)))


@lru_cache(maxsize=1024)
def _is_misspelt(key: str) -> bool:
    head = SEPARATOR.split(key, maxsplit=1)[0].casefold()
    return difflib.SequenceMatcher(None, head, PREFIX.rstrip(".")).ratio() > ALIKE


def _decode(extra: Mapping[str, Any], name: str, default: Any) -> Any:
    value = extra.get(name, default)
    if not isinstance(value, str):
        return value
    try:
        return strict_json(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{PREFIX}{name} is not JSON: {error}", field=f"{PREFIX}{name}") from error


def _constraint(outputs: Any, extra: Mapping[str, Any]) -> Constraint:
    for name, instead in (("disable_additional_properties", "the schema"), ("whitespace_pattern", WHITESPACE_KEY)):
        if getattr(outputs, name, None):
            raise InvalidRequest(
                f"structured_outputs.{name} is not enforced by guideway's strategies; leave it out, and say it in "
                f"{instead}",
                field=f"structured_outputs.{name}",
            )
    strategy, whitespace = extra.get("strategy"), _whitespace(outputs, extra)
    if outputs.grammar is None and "dialect" in extra:
        raise InvalidRequest(f"{PREFIX}dialect is given, but no grammar", field=f"{PREFIX}dialect")
    if outputs.json is not None:
        order = extra.get("properties_order", "declared")
        return JsonSchema(outputs.json, strategy=strategy, whitespace=whitespace, properties_order=order)
    if "properties_order" in extra:
        raise InvalidRequest(f"{ORDER_KEY} is given, but no JSON schema", field=ORDER_KEY)
    if outputs.json_object is not None:
        if outputs.json_object is not True:
            raise InvalidRequest(
                "structured_outputs.json_object must be true, or left out", field="structured_outputs.json_object"
            )
        return JsonObject(strategy=strategy, whitespace=whitespace)
    if outputs.regex is not None:
        return Regex(outputs.regex, strategy=strategy)
    if outputs.choice is not None:
        return Choice(outputs.choice, strategy=strategy)
    if outputs.structural_tag is not None:
        return StructuralTag(outputs.structural_tag, strategy=strategy, whitespace=whitespace)
    dialect = extra.get("dialect")
    return Grammar(outputs.grammar, _dialect(outputs.grammar) if dialect is None else dialect, strategy=strategy)


def _whitespace(outputs: Any, extra: Mapping[str, Any]) -> Any:
    """Return the requested white space, or None. `Runtime.admit` validates it."""
    whitespace = extra.get("whitespace")
    if whitespace is not None and not any(
        getattr(outputs, kind) is not None for kind in ("json", "json_object", "structural_tag")
    ):
        raise InvalidRequest(
            f"{WHITESPACE_KEY} is given, but no constraint with JSON in its outputs", field=WHITESPACE_KEY
        )
    if not getattr(outputs, "disable_any_whitespace", False):
        return whitespace
    if whitespace not in (None, "compact"):
        raise InvalidRequest(
            f"structured_outputs.disable_any_whitespace is {WHITESPACE_KEY}='compact', and {WHITESPACE_KEY} is "
            f"{whitespace!r:.40}; leave out one of them",
            field="structured_outputs.disable_any_whitespace",
        )
    return "compact"


def _dialect(grammar: Any) -> str:
    """Return the dialect that vLLM takes the grammar for: its field holds either."""
    from vllm.v1.structured_output.utils import grammar_is_likely_lark

    return "lark" if grammar_is_likely_lark(grammar) else "ebnf"
