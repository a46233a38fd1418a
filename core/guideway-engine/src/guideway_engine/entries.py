"""Prompts with their own parameters: lines of ``guideway generate --input``, and mappings in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from guideway.api.options import expected
from guideway.api.types import Constraint, SamplingParams
from guideway.errors import InvalidRequest, did_you_mean
from guideway.runtime.constraints.guard.kinds import KINDS

from guideway_engine.fields import fields_of

__all__ = [
    "CONSTRAINTS",
    "LINE_KEYS",
    "SAMPLING",
    "Entry",
    "as_params",
    "constraint_of_line",
    "read_entry",
    "read_params",
]

OTHER = ("constraint", "modifiers", "on_unenforced")
"""Sampling parameters whose flags have another form, or belong to the configuration."""

SAMPLING = {
    name: replace(field, expected=expected(field.hint))  # admission checks ranges, since it knows all parameters
    for name, field in fields_of(SamplingParams).items()
    if name not in OTHER
}
"""Sampling parameters that are flags, and keys of an entry, under their own names."""

CONSTRAINTS = {kind.form.key: kind.form for kind in KINDS.values() if kind.form is not None}
"""Forms of the constraints that an entry may have, by key; an entry may have one."""

LINE_KEYS = ("prompt", "id", *CONSTRAINTS, "tenant", "modifiers", "on_unenforced", *SAMPLING)
"""Keys of an entry."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A prompt of `Engine.generate` with the parameters, tenant and request id that it sets for itself."""

    prompt: Any
    params: Any
    tenant: Any
    request_id: str


def read_entry(prompt: Any, params: Any, tenant: Any, request_id: str) -> Entry:
    """Return `prompt` with its parameters, tenant and id: its own, if it is a mapping ``{"prompt": ...}``, or else the
    given ones. Raises `InvalidRequest` for unknown keys."""
    if not isinstance(prompt, Mapping) or "prompt" not in prompt:
        return Entry(prompt, params, tenant, request_id)
    own = read_params("a prompt", prompt)
    params = SamplingParams() if params is None else params
    if own and isinstance(params, SamplingParams):
        params = replace(params, **own)
    its_id = str(prompt["id"]) if "id" in prompt else request_id
    return Entry(prompt["prompt"], params, prompt.get("tenant", tenant), its_id)


def read_params(where: str, entry: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the sampling parameters that an entry sets. Raises `InvalidRequest` for unknown keys, and without a
    prompt."""
    unknown = sorted((key for key in entry if key not in LINE_KEYS), key=str)
    if "prompt" not in entry:
        instead = f", but the unknown key {unknown[0]!r}" if unknown else ""
        raise InvalidRequest(f"{where} has no 'prompt' (text, or a list of chat messages){instead}", field="input")
    if unknown:
        near = did_you_mean(unknown[0], LINE_KEYS) or (
            f"known are {', '.join(LINE_KEYS[: -len(SAMPLING)])} and the flags of sampling, with _ for -"
        )
        raise InvalidRequest(f"{where} has the unknown key {unknown[0]!r}; {near}", field="input")
    params = as_params({key: entry[key] for key in (*SAMPLING, "modifiers", "on_unenforced") if key in entry})
    if given := [key for key in CONSTRAINTS if key in entry]:
        if len(given) > 1:
            raise InvalidRequest(f"{where} has both {given[0]!r} and {given[1]!r}; keep one", field="input")
        params["constraint"] = constraint_of_line(where, given[0], entry[given[0]])
    return params


def as_params(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert `values` of flags and JSON to the types of `SamplingParams` where possible; admission checks them."""
    params = dict(values)
    for name in ("stop", "stop_token_ids"):
        if isinstance(values.get(name), list):
            params[name] = tuple(values[name])
    bias = values.get("logit_bias")
    if isinstance(bias, list):
        params["logit_bias"] = dict(bias)
    elif isinstance(bias, dict):  # JSON keys are text
        bias = {int(k) if isinstance(k, str) and k.isdecimal() and len(k) < 20 else k: v for k, v in bias.items()}
        params["logit_bias"] = bias
    return params


def constraint_of_line(where: str, key: str, value: Any) -> Constraint:
    """Return the constraint under `key`; admission checks its text."""
    try:
        return CONSTRAINTS[key].read(value)
    except TypeError as error:
        raise InvalidRequest(f"{where} must hold {error}", field="input") from error
