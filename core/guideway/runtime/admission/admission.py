"""Checks whether a request can be served. Every refusal is an `InvalidRequest` that names the field."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace

from guideway.api.hooks import ValidationContext
from guideway.api.options import is_int, short_repr
from guideway.api.types import (
    CONSTRAINTS,
    Companion,
    Constraint,
    OnUnenforced,
    Request,
    SamplingParams,
    Submission,
    Whitespace,
)
from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidRequest, LimitExceeded, UnsupportedCapability, did_you_mean
from guideway.plugins.hooks import Validator, validate
from guideway.runtime.admission.sampling import is_text, python_number, validated
from guideway.runtime.constraints.candidates import CandidateCache
from guideway.runtime.constraints.compiler import Compiled
from guideway.runtime.constraints.guard.kinds import kind_of
from guideway.runtime.work.quarantine import Quarantine

__all__ = [
    "Admission",
    "Validator",
    "check_companions",
    "check_edit",
    "freeze_request",
    "run_validators",
    "validate_request",
]

MAX_TENANT_LENGTH = 256
"""Most characters of `Request.tenant`. Tenants are kept for as long as the host runs."""


MAX_PREFIX_BYTES = 1024
"""Most bytes of what a modifier takes off the end of a prompt."""


@dataclass(frozen=True, slots=True)
class Admission:
    """An admitted request. Its constraint, and values for its modifiers, may still be compiling."""

    request: Request
    compilation: Future[Compiled] | None
    """None if nothing has to be compiled."""
    companions: tuple[Companion, ...]
    """Sequences to run with each sequence of the request. Their logits follow the sampled rows, sequence by sequence
    and companion by companion, as many rows as the sequence has."""
    companion_owners: tuple[str, ...]
    """For each companion, the modifier that asked for it."""
    allowed_prefix: bytes = b""
    """Bytes at the beginning of each output that belong to the prompt of the caller (`LogitModifier.edit_prompt`), and
    not to the text."""
    admitted_at: float = field(default_factory=time.monotonic)

    def ready(self) -> bool:
        """Return whether the request can be started (`start` may still raise a compilation error)."""
        return self.compilation is None or self.compilation.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds for the compilation and return `ready`."""
        if self.compilation is not None:
            wait([self.compilation], timeout)
        return self.ready()


def validate_request(
    request: Request,
    vocabulary: Vocabulary,
    context: ValidationContext,
    known: CandidateCache,
    whitespace: Whitespace = "bounded",
    on_unenforced: OnUnenforced = "report",
) -> Request:
    """Return `request` with every field validated that needs no plugin, and frozen against later changes by its caller.
    Well-formed constraints in `known` are not parsed again; `whitespace` and `on_unenforced` are defaults for requests
    that do not set them. Raises `InvalidRequest`."""
    prompt = _token_ids(request.prompt_token_ids, "prompt", len(vocabulary), context)
    if not is_text(request.tenant) or len(request.tenant) > MAX_TENANT_LENGTH:
        raise InvalidRequest(
            f"tenant must be a string of at most {MAX_TENANT_LENGTH} characters, not {short_repr(request.tenant)}",
            field="tenant",
        )
    params = _params(request.params, vocabulary, context, known, whitespace, on_unenforced)
    return replace(request, prompt_token_ids=prompt, params=params)


def freeze_request(request: Request, whitespace: Whitespace, on_unenforced: OnUnenforced) -> Request:
    """Return what `validate_request` returns for a request that it, or another one with the same plugins and defaults,
    has found valid."""
    params = request.params
    constraint = None if params.constraint is None else _with_whitespace(params.constraint.frozen(), whitespace)
    found = replace(params, constraint=constraint, on_unenforced=params.on_unenforced or on_unenforced)
    return replace(request, params=found)


def check_companions(
    companions: Sequence[tuple[str, object]], vocabulary: Vocabulary, context: ValidationContext, max_num_sequences: int
) -> None:
    """Check the companion sequences that modifiers ask for. Raises `InvalidRequest` with field ``modifiers.<name>``."""
    for name, companion in companions:
        if not isinstance(companion, Companion):
            raise InvalidRequest(
                f"modifier {name!r} asks for a companion of type {type(companion).__name__}, which must be Companion",
                field=f"modifiers.{name}",
            )
        _token_ids(companion.prompt_token_ids, f"modifiers.{name}", len(vocabulary), context)
    if len(companions) >= max_num_sequences:
        raise LimitExceeded(
            f"the request needs {len(companions)} companion sequences besides its own, but only {max_num_sequences} "
            "sequences can run at once; raise max_num_seqs",
            field="modifiers",
        )


def check_edit(
    name: str,
    request: Request,
    token_ids: Sequence[int],
    prefix: bytes,
    vocabulary: Vocabulary,
    context: ValidationContext,
) -> None:
    """Check what the modifier `name` makes of the prompt. Raises `InvalidRequest` with field ``modifiers.<name>``."""
    field, params = f"modifiers.{name}", request.params
    _token_ids(token_ids, field, len(vocabulary), context)
    if len(prefix) > MAX_PREFIX_BYTES:
        raise LimitExceeded(
            f"modifier {name!r} wants an output to begin with {len(prefix)} bytes; at most {MAX_PREFIX_BYTES} may",
            field=field,
        )
    if prefix and (params.constraint is not None or params.reasoning):
        other = "a constraint" if params.constraint is not None else "reasoning"
        raise UnsupportedCapability(
            f"modifier {name!r} takes text off the end of the prompt, which the output must begin with, and {other} "
            "leaves no place for that; remove one of the two",
            field=field,
        )


def run_validators(
    validators: Mapping[type, Sequence[tuple[str, Validator]]],
    subject: Submission | Request,
    context: ValidationContext,
    quarantine: Quarantine,
) -> None:
    """Run each hook that validates the type of `subject`. Raises `InvalidRequest`, and `PluginUnavailable` for a plugin
    in quarantine."""
    for plugin, validator in validators.get(type(subject), ()):
        quarantine.check(plugin)
        validate(plugin, validator, subject, context)


def _token_ids(ids: object, field: str, num_tokens: int, context: ValidationContext) -> tuple[int, ...]:
    what = "the prompt" if field == "prompt" else f"the prompt of {field}"
    if not isinstance(ids, list | tuple):
        raise InvalidRequest(f"{what} must be a list of token ids, not {type(ids).__name__}", field=field)
    if not ids:
        raise InvalidRequest(f"{what} is empty; it needs at least one token", field=field)
    plain = set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < num_tokens  # prompts are long
    for token_id in () if plain else ids:
        if not is_int(token_id) or not 0 <= token_id < num_tokens:
            raise InvalidRequest(
                f"token id {short_repr(token_id)} of {what} is not in the vocabulary (ids 0 to {num_tokens - 1})",
                field=field,
            )
    if len(ids) >= context.max_model_len:
        raise LimitExceeded(
            f"{what} has {len(ids)} tokens, but the context length is {context.max_model_len} and one token must "
            f"remain for the output; shorten it to {context.max_model_len - 1}",
            field=field,
        )
    return tuple(ids)


def _params(
    params: SamplingParams,
    vocabulary: Vocabulary,
    context: ValidationContext,
    known: CandidateCache,
    whitespace: Whitespace,
    on_unenforced: OnUnenforced,
) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        raise InvalidRequest(f"params must be SamplingParams, not {type(params).__name__}", field="params")
    return replace(
        validated(params, len(vocabulary)),
        stop_token_ids=_stop_token_ids(params, vocabulary),
        modifiers=_modifiers(params.modifiers, context),
        constraint=None if params.constraint is None else _constraint(params.constraint, context, known, whitespace),
        on_unenforced=params.on_unenforced or on_unenforced,
    )


def _stop_token_ids(params: SamplingParams, vocabulary: Vocabulary) -> tuple[int, ...]:
    given = () if params.stop_token_ids is None else params.stop_token_ids
    ids = tuple(map(python_number, given)) if isinstance(given, list | tuple | set | frozenset) else None
    if ids is None or not all(is_int(i) and 0 <= i < len(vocabulary) for i in ids):
        raise InvalidRequest(
            f"stop_token_ids must be a list of token ids from 0 to {len(vocabulary) - 1}, not {short_repr(given)}",
            field="stop_token_ids",
        )
    textual = next((i for i in ids if vocabulary.tokens[i]), None)
    if textual is not None and params.constraint is not None:
        raise InvalidRequest(
            f"stop token {textual} stands for the text {short_repr(vocabulary.tokens[textual])} and could end the "
            "output before the constraint is satisfied; remove the stop token or the constraint",
            field="stop_token_ids",
        )
    return ids


def _modifiers(modifiers: object, context: ValidationContext) -> dict[str, Mapping[str, object]]:
    if modifiers is None:
        return {}
    if not isinstance(modifiers, Mapping):
        raise InvalidRequest(
            f"modifiers must map names of logit modifiers to their options, not {short_repr(modifiers)}",
            field="modifiers",
        )
    for name, options in modifiers.items():
        if name not in context.modifiers:
            raise _not_configured("logit modifier", name, context.modifiers, "modifiers")
        if not isinstance(options, Mapping):
            raise InvalidRequest(
                f"the options of modifier {name!r} must be a mapping, {{}} for none, not {short_repr(options)}",
                field=f"modifiers.{name}",
            )
    return {name: {key: _copied(value) for key, value in options.items()} for name, options in modifiers.items()}


def _copied(value: object) -> object:
    """Return `value` with copies of all mappings and lists in it."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _constraint(
    constraint: Constraint, context: ValidationContext, known: CandidateCache, whitespace: Whitespace
) -> Constraint:
    if not isinstance(constraint, Constraint):
        names = [each.__name__ for each in CONSTRAINTS]
        raise InvalidRequest(
            f"constraint must be a {', '.join(names[:-1])} or {names[-1]}, not {type(constraint).__name__}",
            field="constraint",
        )
    if constraint.strategy is not None and constraint.strategy not in context.grammars:
        raise _not_configured("grammar strategy", constraint.strategy, context.grammars, "constraint.strategy")
    known.check_bytes(constraint)
    constraint = _with_whitespace(constraint.frozen(), whitespace)
    if constraint not in known:
        constraint.source()
        kind_of(constraint).check(constraint)
    return constraint


def _with_whitespace(constraint: Constraint, whitespace: Whitespace) -> Constraint:
    """Return a constraint with its white space, if it has JSON: `whitespace` unless it has its own."""
    if getattr(constraint, "whitespace", whitespace) is None:
        return replace(constraint, whitespace=whitespace)  # type: ignore[call-arg]
    return constraint


def _not_configured(what: str, name: object, configured: Iterable[str], field: str) -> InvalidRequest:
    hint = did_you_mean(name, configured)
    known = f"configured: {', '.join(configured) or 'none'}"
    parts = (f"no {what} {short_repr(name)} is configured", hint, known)
    return InvalidRequest("; ".join(part for part in parts if part), field=field)
