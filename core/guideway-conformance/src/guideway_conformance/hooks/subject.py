"""A plugin with validators or observers under test, and what it may be told."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
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

__all__ = ["Asked", "HooksSubject", "as_bytes", "requests", "results", "submissions"]

PREFIX = "guideway_"
SCHEMA = """{"title": "T", "$comment": "of nothing", "type": "object", "examples": [{"a": 0.5}],
"properties": {"a": {"type": "number", "minimum": 0.5, "description": "half", "default": null}}}"""
TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"minimum": 0.5}}}}},
    {"function": {"name": "g", "description": None, "strict": True, "parameters": {"enum": [1, 2.5, None, "x"]}}},
    {},
)
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
    def plugin_class(self) -> Any:
        """The class of the object that carries its hooks, or the module that does."""
        return self._plugin if isinstance(self._plugin, ModuleType) else type(self._plugin)

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
        if "validate_submission" in heard:
            for submission in submissions():
                yield Asked("validate_submission", {"submission": submission, "context": self.context})
        if "validate_request" in heard:
            for request in requests():
                yield Asked("validate_request", {"request": request, "context": self.context})

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
    for task in ("embed", "rerank", "classify", "a stranger's"):
        made.append(Request(request_id=task, prompt_token_ids=(1, 2), params=SamplingParams(priority=3), task=task))
    for priority in (1, 100, 10**6, -(10**6)):
        of_priority = SamplingParams(priority=priority, max_tokens=2, n=9)
        made.append(Request(request_id=f"priority {priority}", prompt_token_ids=(1, 2), params=of_priority))
    made.append(
        Request(request_id="schema", prompt_token_ids=(1,), params=SamplingParams(constraint=JsonSchema(SCHEMA)))
    )
    return made


def submissions() -> list[Submission]:
    """The same before they are tokenized, and what only a submission may be: parameters are not looked at yet."""
    made = [
        Submission(
            request_id=each.request_id,
            prompt=each.prompt or each.prompt_token_ids or ({"role": "user", "content": "hi"},),
            params=each.params,
            task=each.task,
            tenant=each.tenant,
        )
        for each in requests()
    ]
    chat = ({"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image", "width": 0.5}]},)
    for prompt in (("a query", "a document"), chat, (), "", {"of": ["a stranger's", 0.5, None]}):
        made.append(Submission(request_id="prompt", prompt=prompt, params=SamplingParams()))  # type: ignore[arg-type]
    made.append(Submission(request_id="ids", prompt=None, prompt_token_ids=(1, 2, 3), params=SamplingParams()))
    made.append(Submission(request_id="tools", prompt=chat, params=SamplingParams(), tools=copy.deepcopy(TOOLS)))
    for priority in ("high", None, 1.5):
        params = SamplingParams(priority=priority)  # type: ignore[arg-type]
        made.append(Submission(request_id=f"priority {priority}", prompt="hi", params=params))
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
    """`value` in a form that shows any change, also one of what a constraint keeps of its text."""
    arguments = value.values() if isinstance(value, dict) else (value,)
    constraints = [each.params.constraint for each in arguments if isinstance(each, Request | Submission)]
    return pickle.dumps((value, [each.parsed for each in constraints if isinstance(each, JsonSchema)]))
