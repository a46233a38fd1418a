"""A policy, with limits per tenant, and the file that contains it."""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from guideway.api import InvalidConfiguration, InvalidRequest, LimitExceeded, Request, ValidationContext, parse_options

__all__ = ["Limits", "Policy", "PolicyFile"]

KEYS = ("unknown", "default", "tenants")
"""The keys that a policy may have."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits for one tenant's requests; None: no limit but the engine's."""

    max_tokens: int | None = None
    """Maximum generated tokens of one sequence."""
    max_prompt_tokens: int | None = None
    max_sequences: int | None = None
    """Maximum ``n`` or ``best_of``."""
    max_logprobs: int | None = None
    """Maximum ``logprobs`` and ``prompt_logprobs``; -1: none at all, not even for the tokens themselves."""
    min_temperature: float | None = None
    max_temperature: float | None = None
    min_priority: int | None = None
    """Lowest allowed priority. Requests with a lower one run first."""
    grammars: tuple[str, ...] | None = None
    """The grammar strategies that constraints may use."""
    modifiers: tuple[str, ...] | None = None
    """The logit modifiers that requests may use."""

    def __post_init__(self) -> None:
        for name in ("min_temperature", "max_temperature"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):  # NaN would let everything pass
                raise InvalidConfiguration(f"{name} must be finite, not {value}", field=name)

    def check(self, request: Request, context: ValidationContext) -> None:
        """Raise `InvalidRequest`, naming field and limit."""
        tenant = _name(request.tenant)
        num_tokens = len(request.prompt_token_ids)
        _at_most(self.max_prompt_tokens, num_tokens, "prompt", f"the prompt's length in tokens of {tenant}")
        self._check_priority(request, tenant)
        if request.task == "generate":
            self._check_generated(request, context, tenant)

    def _check_generated(self, request: Request, context: ValidationContext, tenant: str) -> None:
        params, num_prompt_tokens = request.params, len(request.prompt_token_ids)
        if params.max_tokens is None:
            room = context.max_model_len - num_prompt_tokens
            _at_most(
                self.max_tokens,
                room,
                "max_tokens",
                f"max_tokens of {tenant} is not set, and what the context has room for",
            )
        else:
            _at_most(self.max_tokens, params.max_tokens, "max_tokens", f"max_tokens of {tenant}")
        many = "n" if params.best_of is None else "best_of"
        _at_most(self.max_sequences, params.num_sequences, many, f"{many} of {tenant}")
        for name in ("logprobs", "prompt_logprobs"):
            if (count := getattr(params, name)) is not None:
                _at_most(self.max_logprobs, count, name, f"{name} of {tenant}")
        self._check_ranges(request, tenant)
        self._check_components(request, context, tenant)

    def _check_ranges(self, request: Request, tenant: str) -> None:
        params = request.params
        low, high = self.min_temperature, self.max_temperature
        if (low is not None and params.temperature < low) or (high is not None and params.temperature > high):
            allowed = " and ".join(
                f"{word} {bound:g}" for word, bound in (("at least", low), ("at most", high)) if bound is not None
            )
            raise LimitExceeded(
                f"temperature of {tenant} must be {allowed}, not {params.temperature:g}", field="temperature"
            )

    def _check_priority(self, request: Request, tenant: str) -> None:
        params = request.params
        if self.min_priority is not None and params.priority < self.min_priority:
            raise LimitExceeded(
                f"priority of {tenant} must be at least {self.min_priority} (lower runs first), not {params.priority}",
                field="priority",
            )

    def _check_components(self, request: Request, context: ValidationContext, tenant: str) -> None:
        params, constraint = request.params, request.params.constraint
        for name in params.modifiers:
            if self.modifiers is not None and name not in self.modifiers:
                raise InvalidRequest(
                    f"{tenant} may not use the modifier {name!r}; allowed: {_join(self.modifiers)}",
                    field=f"modifiers.{name}",
                )
        if constraint is None or self.grammars is None:
            return
        candidates = context.grammars if constraint.strategy is None else (constraint.strategy,)
        if wrong := [name for name in candidates if name not in self.grammars]:
            allowed = [name for name in context.grammars if name in self.grammars]
            chosen = "names no strategy, and the host may choose" if constraint.strategy is None else "names"
            raise InvalidRequest(
                f"a constraint of {tenant} {chosen} {wrong[0]!r}; set its strategy to one that is allowed: "
                f"{_join(allowed)}",
                field="constraint.strategy",
            )


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Limits by tenant, and the treatment of tenants without any."""

    unknown: Literal["deny", "default"] = "deny"
    """``deny`` refuses a tenant that is not listed, ``default`` gives it the limits of `default`."""
    default: Limits = field(default_factory=Limits)
    tenants: Mapping[str, Limits] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> Policy:
        """Parse a policy. A limit that a tenant's table leaves out is taken from the table ``default``. Raises
        `InvalidConfiguration`."""
        try:
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
            raise InvalidConfiguration(f"it is not TOML: {error}", field="policy") from error
        for key in table.keys() - KEYS:
            close = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise InvalidConfiguration(f"unknown key {key!r}; {hint}known: {', '.join(KEYS)}", field=key)
        unknown, default, tenants = table.get("unknown", "deny"), table.get("default", {}), table.get("tenants", {})
        if unknown not in ("deny", "default"):
            raise InvalidConfiguration(f"unknown must be 'deny' or 'default', not {unknown!r}", field="unknown")
        _check_table("default", default)
        _check_table("tenants", tenants)
        limits = {}
        for tenant, own in tenants.items():
            _check_table(where := f"tenants.{tenant}", own)
            parse_options(Limits, own, where=where)  # parsed separately first, so that an error names the right table
            limits[tenant] = parse_options(Limits, {**default, **own}, where=where)
        return Policy(unknown=unknown, default=parse_options(Limits, default, where="default"), tenants=limits)

    def check(self, request: Request, context: ValidationContext) -> None:
        """Raise `InvalidRequest`, naming field and limit."""
        limits = self.tenants.get(request.tenant, self.default if self.unknown == "default" else None)
        if limits is None:
            raise InvalidRequest(f"{_name(request.tenant)} is not in the policy", field="tenant")
        limits.check(request, context)

    def described(self) -> Iterator[str]:
        """Yield a line for each tenant, with its limits."""
        for tenant, limits in self.tenants.items():
            yield f"{_name(tenant)}: {_describe(limits)}"
        yield f"others: {'refused' if self.unknown == 'deny' else _describe(self.default)}"


class PolicyFile:
    """A policy in a file, read again when the file changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._policy: Policy | None = None

    def policy(self) -> Policy:
        """Return the current policy of the file. Raises `InvalidConfiguration` if it cannot be read or is invalid."""
        try:
            status = os.stat(self._path)  # noqa: PTH116 - what `Path.stat` calls, per request
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._policy is None or stamp != self._stamp:
                self._policy = None
                self._policy = Policy.parse(self._path.read_text("utf-8"))
                self._stamp = stamp
            return self._policy
        except (OSError, ValueError) as error:  # InvalidConfiguration is a ValueError, and so is text that is not UTF-8
            field = error.field if isinstance(error, InvalidConfiguration) else "policy"
            raise InvalidConfiguration(f"{self._path}: {error}", field=field) from error


def _check_table(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise InvalidConfiguration(f"{name} must be a table, not {value!r}", field=name)


def _at_most(limit: int | None, value: int, field: str, subject: str) -> None:
    if limit is not None and value > limit:
        raise LimitExceeded(f"{subject} may be at most {limit}, not {value}", field=field)


def _name(tenant: str) -> str:
    return f"tenant {tenant!r}" if tenant else "a request without a tenant"


def _join(names: Any) -> str:
    return ", ".join(names) or "none"


def _describe(limits: Limits) -> str:
    shown = [
        f"{f.name} {_join(value) if isinstance(value, tuple) else value}"
        for f in fields(limits)
        if (value := getattr(limits, f.name)) is not None
    ]
    return ", ".join(shown) or "no limits"
