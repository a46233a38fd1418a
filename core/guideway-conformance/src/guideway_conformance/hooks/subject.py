"""A plugin with validators or observers under test, and what it may be told."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from guideway.api import (
    Choice,
    Completion,
    FinishReason,
    GenerationResult,
    GuidewayError,
    JsonObject,
    JsonSchema,
    Regex,
    Request,
    SamplingParams,
    Submission,
    TokenLogprobs,
    ValidationContext,
)
from guideway.plugins.loading import hook_manager

from guideway_conformance.subjects import Settings, Subject

__all__ = ["HooksSubject", "as_bytes", "requests", "results"]

PREFIX = "guideway_"
MAX_MODEL_LEN = 1024


@dataclass(frozen=True)
class Asked:
    """One call of a validator."""

    hook: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        argument, given = next(iter(self.arguments.items()))
        return f"{argument} {given.request_id!r}"


class HooksSubject(Subject):
    """Registers the plugin as a host does, and calls its hooks."""

    kind = "hooks"

    def __init__(self, component: Any, settings: Settings) -> None:
        super().__init__(component, settings)
        self._plugin = component() if isinstance(component, type) else component
        self.context = ValidationContext(
            model="conformance",
            max_model_len=MAX_MODEL_LEN,
            vocabulary_size=1000,
            grammars=("reference",),
            modifiers=(),
        )

    @classmethod
    def traits(cls, component: Any) -> frozenset[str]:
        """The hooks it implements, such as ``validate_request``."""
        plugin = component() if isinstance(component, type) else component
        heard = {name for name, caller in _callers(plugin) if caller.has_spec() and caller.get_hookimpls()}
        kinds = {"request_": "observes", "validate_": "validates"}
        return frozenset(heard | {kind for prefix, kind in kinds.items() if any(n.startswith(prefix) for n in heard)})

    @property
    def unknown(self) -> list[str]:
        """The hooks it implements that guideway does not have."""
        return [
            PREFIX + name
            for name, caller in _callers(self._plugin)
            if not caller.has_spec() and not all(impl.optionalhook for impl in caller.get_hookimpls())
        ]

    def validated(self) -> Iterator[Asked]:
        """All that its validators are asked of."""
        heard = self.traits(self.component)
        for each in requests():
            submission = Submission(
                request_id=each.request_id,
                prompt=each.prompt or each.prompt_token_ids or ({"role": "user", "content": "hi"},),
                params=each.params,
                tenant=each.tenant,
            )
            for hook, argument, given in (
                ("validate_submission", "submission", submission),
                ("validate_request", "request", each),
            ):
                if hook in heard:
                    yield Asked(hook, {argument: given, "context": self.context})

    def call(self, hook: str, **arguments: Any) -> list[Any]:
        """Return what its implementations of `hook` returned, None apart."""
        found: list[Any] = dict(_callers(self._plugin))[hook](**arguments)
        return found


def _callers(plugin: Any) -> Iterator[tuple[str, Any]]:
    manager = hook_manager()
    manager.register(plugin)
    for name, caller in vars(manager.hook).items():
        if name.startswith(PREFIX):
            yield name.removeprefix(PREFIX), caller


def requests() -> list[Request]:
    """Requests of every make, all well formed."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    params = [
        SamplingParams(),
        SamplingParams(max_tokens=1, temperature=0.7, top_k=5, top_p=0.9, seed=3),
        SamplingParams(max_tokens=64, n=3, logprobs=2, prompt_logprobs=0, stop=("\n",), priority=-1),
        SamplingParams(max_tokens=8, logit_bias={3: 1.5}, min_tokens=2, ignore_eos=True, echo=True),
        SamplingParams(constraint=JsonSchema(schema)),
        SamplingParams(constraint=JsonObject()),
        SamplingParams(constraint=Regex("[a-z]+")),
        SamplingParams(constraint=Choice(("yes", "no"))),
        SamplingParams(modifiers={"unknown": {"strength": 2.0, "words": ["a", "b"]}}),
    ]
    made = [
        Request(request_id=f"request-{i}", prompt_token_ids=tuple(range(1, 2 + 7 * i)), params=p)
        for i, p in enumerate(params)
    ]
    made.append(Request(request_id="text", prompt_token_ids=(1, 2), params=SamplingParams(), prompt="Ünï\n\0 😀"))
    made.append(Request(request_id="tenant", prompt_token_ids=(1,), params=SamplingParams(), tenant="someone"))
    made.append(Request(request_id="long", prompt_token_ids=(7,) * (MAX_MODEL_LEN - 1), params=SamplingParams()))
    made.append(Request(request_id="", prompt_token_ids=(), params=SamplingParams(max_tokens=4096)))
    return made


def results(request: Request) -> list[GenerationResult]:
    """Every way in which `request` may end."""
    made = [
        GenerationResult(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            outputs=(Completion(text="é", token_ids=(7,), finish_reason=reason, logprobs=(TokenLogprobs(7, -0.5),)),),
        )
        for reason in FinishReason
    ]
    made.append(
        GenerationResult(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            outputs=(Completion(finish_reason=FinishReason.INTERNAL_ERROR, error=GuidewayError("it failed")),),
        )
    )
    made.append(
        GenerationResult(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            outputs=(
                Completion(text="a", token_ids=(5,), unenforced=("uniqueItems",)),
                Completion(
                    index=1, finish_reason=FinishReason.INTERNAL_ERROR, error=GuidewayError("it failed for a test")
                ),
            ),
        )
    )
    made.append(GenerationResult(request_id=request.request_id))
    return made


def as_bytes(value: object) -> bytes:
    """`value` in a form that shows any change."""
    return pickle.dumps(value)
