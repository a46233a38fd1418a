"""A plugin with validators or observers under test, and what it may be told."""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import json
import math
import os
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from guideway.api import (
    Choice,
    Completion,
    FinishReason,
    GenerationResult,
    GuidewayError,
    InvalidRequest,
    JsonObject,
    JsonSchema,
    LimitExceeded,
    Regex,
    Request,
    SamplingParams,
    Submission,
    TokenLogprobs,
    ValidationContext,
)
from guideway.plugins.loading import hook_manager

from guideway_conformance.recorded import Lent, recorded
from guideway_conformance.subjects import Settings, Subject

__all__ = [
    "Asked",
    "HooksSubject",
    "as_bytes",
    "environment",
    "extremes",
    "modest",
    "refused_words",
    "requests",
    "results",
    "submissions",
    "twins",
    "variables",
    "words",
]

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
    written: list[str] = field(default_factory=list)
    """The writes to dicts and lists among its arguments."""

    @classmethod
    def recording(cls, hook: str, **arguments: Any) -> Asked:
        """A call with arguments that note what is written to them."""
        written: list[str] = []
        return cls(hook, {name: recorded(value, written) for name, value in arguments.items()}, written)

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

    def validated(self, *, extreme: bool = False) -> Iterator[Asked]:
        """All that its validators are asked of. `extreme`: also what is long, or of a form that hosts seldom meet."""
        heard = self.traits(self.component)
        if "validate_submission" in heard:
            for submission in [*submissions(), *(_odd_submissions() if extreme else ())]:
                yield Asked.recording("validate_submission", submission=submission, context=self.context)
        if "validate_request" in heard:
            for request in [*requests(), *(extremes() if extreme else ())]:
                yield Asked.recording("validate_request", request=request, context=self.context)

    def modest(self) -> Iterator[Asked]:
        """The calls of its validators for requests that ask for little."""
        heard = self.traits(self.component)
        for request in modest():
            if "validate_submission" in heard:
                submission = Submission(
                    request_id=request.request_id,
                    prompt=request.prompt or "w",
                    params=request.params,
                    task=request.task,
                    tenant=request.tenant,
                )
                yield Asked.recording("validate_submission", submission=submission, context=self.context)
            if "validate_request" in heard:
                yield Asked.recording("validate_request", request=request, context=self.context)

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


EXTREMES: tuple[dict[str, Any], ...] = (
    *({"max_tokens": 1 << 40}, {"max_tokens": None, "min_tokens": 1 << 20}, {"n": 1000}, {"best_of": 1000}),
    *(
        {"logprobs": 0},
        {"logprobs": 100_000},
        {"prompt_logprobs": 100_000},
        {"stop": "one alone"},
        {"stop": ("\ud800",)},
    ),
    *({"stop": tuple(map(str, range(500)))}, {"stop_token_ids": tuple(range(500))}, {"seed": (1 << 63) - 1}),
    *({"logit_bias": dict.fromkeys(range(500), -math.inf)}, {"temperature": 1e30, "top_k": -1, "top_p": 1e-9}),
    *({"temperature": 5}, {"temperature": 1.0, "seed": 0}, {"min_p": 1.0, "typical_p": 1e-9}, {"max_retries": 1000}),
    *({"repetition_penalty": 1e9, "frequency_penalty": -2, "presence_penalty": 2}, {"on_unenforced": "refuse"}),
    *({"reasoning": True, "thinking_token_budget": 1}, {"thinking_token_budget": 1 << 40}, {"priority": 1 << 70}),
    *(
        {"modifiers": {f"modifier {i}": {} for i in range(100)}},
        {"modifiers": {"unknown": {"a": {"b": [{"c": None}]}}}},
    ),
    {"modifiers": Lent({"unknown": Lent({"of": ["a mapping"]})})},
    *(
        {"constraint": Regex("(a|b)*" * 500)},
        {"constraint": Choice(("yes",) * 500)},
        {"constraint": Regex("a", strategy="no")},
    ),
    *({"constraint": JsonSchema({"a": [{"b": {}}] * 50})}, {"constraint": JsonSchema(True)}),
)
"""Parameters of well-formed requests that ask for much."""


WRONG: tuple[Any, ...] = (None, True, -1, 2.5, math.nan, 10**400, "5", "\ud800", [], ["x"], {}, {"x": None}, object)
"""Values of parameters of which nothing has been looked at."""

LONG_TEXT = 1_300_000
LEVELS = 100
"""The levels of a message, and of a tool, that hosts let pass."""


def extremes() -> list[Request]:
    """Requests that are well formed, and far from what is usual."""
    made = [
        Request(request_id=f"extreme {i}", prompt_token_ids=(1, 2), params=SamplingParams(**params))
        for i, params in enumerate(EXTREMES)
    ]
    text = Request(request_id="of a half", prompt_token_ids=(1, 2), params=SamplingParams(), prompt="w \ud800")
    made += [text, replace(text, request_id="\ud800"), replace(text, request_id="of a tenant", tenant="\ud800")]
    made.append(replace(text, request_id="of a task", task="\ud800"))
    made.append(replace(text, request_id="of many tokens", prompt_token_ids=(7,) * 50_000, prompt=None))
    made.append(replace(text, request_id="of a long text", prompt="ab" * (LONG_TEXT // 2)))
    made.append(replace(text, request_id="of large tokens", prompt_token_ids=(10**9, 1 << 62), seed=1 << 62))
    return [*made, *modest()]


def modest() -> list[Request]:
    """Requests that ask for one thing each, and otherwise for as little as can be: they meet no other limit."""
    little: dict[str, Any] = {"max_tokens": 1, "n": 1, "priority": 0}
    params = [SamplingParams(**{**little, **each}) for each in ({}, *EXTREMES)]
    of_a_form = (each.params for each in requests() if each.params.constraint or each.params.modifiers)
    params += [replace(each, **little) for each in of_a_form]
    return [
        Request(request_id=f"modest {i}", prompt_token_ids=(1,), params=each, prompt="w")
        for i, each in enumerate(params)
    ]


def _nested(levels: int) -> list[Any]:
    """Values nested as deep as a host lets pass: lists in lists, and mappings in mappings."""
    found: list[Any] = ["hi", "hi"]
    for _ in range(levels):
        found = [[found[0]], {"content": found[1]}]
    return found


def _odd_submissions() -> list[Submission]:
    """Submissions of every form that a prompt may have, and with parameters that nobody has looked at."""
    plain = Submission(request_id="odd", prompt="hi", params=SamplingParams())
    made = [
        replace(plain, request_id=f"of {each.request_id}", params=each.params, tenant=each.tenant, task=each.task)
        for each in extremes()
    ]
    user = {"role": "user", "content": "hi"}
    messages: list[Any] = [
        *({"role": "user"}, {"content": "hi"}, {}, {"role": "narrator", "content": "hi"}, {**user, "role": "\ud800"}),
        *({**user, "role": None}, {**user, "role": 5}, {**user, "content": None}, {**user, "content": 5}),
        *({**user, "content": "w \ud800"}, {**user, "content": []}, {**user, "content": ["hi", None, 5, [{}]]}),
        *(
            {**user, "content": [{}, {"type": "text"}, {"type": "text", "text": "\ud800"}]},
            {**user, "name": "N", "x": {}},
        ),
        {**user, "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}],
        },
        *({"role": "tool", "tool_call_id": None, "content": "\0"}, {"role": "system", "content": ""}, Lent(user)),
    ]
    prompts: list[Any] = [
        *((each,) for each in messages),
        *((user, each) for each in messages),
        *((user,) * 300, (user, {"role": "assistant", "content": "hi"}) * 3),
        *("\ud800", "a \udfff b", " ", "\0", "w" * LONG_TEXT, ({**user, "content": "w" * LONG_TEXT},)),
        *(("", ""), ("\ud800", "w1"), ("w1", "\ud800"), ("a query", "w" * LONG_TEXT), (0,), (10**9, 1 << 62)),
        *((7,) * 50_000, {"prompt": "\ud800"}, {"prompt_token_ids": [1, 2]}, {}),
        *(({**user, "content": content},) for content in _nested(LEVELS - 1)),
    ]
    made += [replace(plain, prompt=prompt) for prompt in prompts]
    made += [replace(plain, prompt=None), replace(plain, prompt=None, prompt_token_ids=())]
    tools: list[Any] = [*TOOLS, {"function": None}, {"function": {"parameters": None}}, Lent({"type": "function"})]
    tools += [
        {"type": "function", "function": {"name": "f", "parameters": {"a": each}}} for each in _nested(LEVELS - 3)
    ]
    made += [replace(plain, tools=(tool,)) for tool in tools]
    made += [replace(plain, tools=tuple(copy.deepcopy(tools)) * 20), replace(plain, task="embed", prompt=("a", "b"))]
    for each in fields(SamplingParams):
        of_wrong = [SamplingParams(**{each.name: copy.deepcopy(value)}) for value in WRONG]
        made += [
            replace(plain, request_id=f"{each.name} = {value!r:.20}", params=params)
            for value, params in zip(WRONG, of_wrong, strict=True)
        ]
    return made


MOST_WORDS = 60
"""The words of a plugin's own code, and those of its files, that requests are made of."""
MOST_REFUSED = 3
"""As many of those that are refused, in each place of a request, are in other requests too."""
FILLER = "this and that " * 400
"""The text before or behind a word that is refused."""


def words(subject: HooksSubject) -> list[str]:
    """The texts that stand in a plugin's code, and in the files that variables of its own name."""
    found: list[str] = []
    with contextlib.suppress(OSError, TypeError, SyntaxError):
        tree = ast.parse(inspect.getsource(inspect.getmodule(subject.plugin_class) or subject.plugin_class))
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in told)
        found += [text for text in texts if isinstance(text, str)][: 4 * MOST_WORDS]
    for name in variables(subject):
        with contextlib.suppress(OSError, ValueError):
            content = Path(os.environ.get(name, "")).read_text("utf-8")
            found = [*re.findall(r"[\w -]{2,60}", content)[:MOST_WORDS], *found]
    fit = [word for word in dict.fromkeys(found) if word.strip() and 2 <= len(word) <= 60]
    return fit[:MOST_WORDS]


def _with_word(word: str) -> dict[str, Submission]:
    """Small submissions with `word` in one place each."""
    little = SamplingParams(max_tokens=1)
    plain = Submission(request_id="twin", prompt="w", params=little)
    return {
        "prompt": replace(plain, prompt=word),
        "tenant": replace(plain, tenant=word),
        "task": replace(plain, task=word),
        "modifiers": replace(plain, params=replace(little, modifiers={word: {}})),
    }


def twins(subject: HooksSubject, refused: list[tuple[str, str]]) -> Iterator[Asked]:
    """The calls for requests with words that are refused, and in what place, each behind that for another which is the
    same but for the word, and as long."""
    little = SamplingParams(max_tokens=1)
    plain = Submission(request_id="twin", prompt="w", params=little)
    pairs: list[tuple[Submission, Submission]] = [
        (replace(plain, prompt=FILLER + "w"), replace(plain, prompt=FILLER + "w" * LONG_TEXT))
    ]
    for place, word in refused:
        both = ("x" * len(word), word)
        if place != "prompt":
            of_places = [_with_word(each)[place] for each in both]
            pairs.append((of_places[0], of_places[1]))
            continue
        for before, behind in ((FILLER, ""), ("", FILLER), (FILLER, FILLER)):
            text = [f"{before}{each} {behind}" for each in both]
            pairs.append((replace(plain, prompt=text[0]), replace(plain, prompt=text[1])))
            system = {"role": "system", "content": FILLER}
            chats = [(system, {"role": "user", "content": each}) for each in text]
            pairs.append((replace(plain, prompt=chats[0]), replace(plain, prompt=chats[1])))
            tools = [({"type": "function", "function": {"name": "f", "description": each}},) for each in text]
            pairs.append((replace(plain, tools=tools[0]), replace(plain, tools=tools[1])))
    for i, pair in enumerate(pairs):
        for submission in pair:
            yield from _asked(subject, replace(submission, request_id=f"twin {i}"))


def refused_words(subject: HooksSubject) -> list[tuple[str, str]]:
    """The places of a request and words there that are refused, of those that the plugin has."""
    found: list[tuple[str, str]] = []
    for word in words(subject):
        for place, submission in _with_word(word).items():
            for asked in _asked(subject, submission):
                try:
                    subject.call(asked.hook, **asked.arguments)
                except LimitExceeded:
                    continue
                except Exception:  # of what kind, `passes_or_refuses` asks
                    found.append((place, word))
    found = list(dict.fromkeys(found))
    return [each for place in _with_word("") for each in [e for e in found if e[0] == place][:MOST_REFUSED]]


def _asked(subject: HooksSubject, submission: Submission) -> Iterator[Asked]:
    """The calls of its validators for a submission, and for the request that comes of it."""
    heard = subject.traits(subject.component)
    if "validate_submission" in heard:
        yield Asked.recording("validate_submission", submission=submission, context=subject.context)
    if "validate_request" in heard and isinstance(submission.prompt, str) and not submission.tools:
        request = Request(
            request_id=submission.request_id,
            prompt_token_ids=(1,),
            params=submission.params,
            prompt=submission.prompt,
            tenant=submission.tenant,
            task=submission.task,
        )
        yield Asked.recording("validate_request", request=request, context=subject.context)


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """An environment in which the variable `name` has `value`."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})


def variables(subject: HooksSubject) -> list[str]:
    """The variables of the environment that a plugin asks for, whatever it is told, and that are its own."""
    asked: set[str] = set()

    class Watched(type(os.environ)):  # type: ignore[misc]
        def __getitem__(self, name: str) -> str:
            asked.add(name)
            return str(super().__getitem__(name))

    known = os.environ.__class__
    os.environ.__class__ = Watched
    try:
        again = HooksSubject(subject.component, subject.settings)
        heard = again.traits(again.component)
        request = requests()[0]
        told: list[tuple[str, dict[str, Any]]] = [(each.hook, each.arguments) for each in again.validated()]
        told.append(("request_started", {"request": request}))
        told.append(("request_failed", {"request": request, "error": GuidewayError("it failed")}))
        told.append(("request_finished", {"request": request, "result": results(request)[0]}))
        for hook, arguments in told:
            with contextlib.suppress(Exception):  # of what kind, `passes_or_refuses` asks
                if hook in heard:
                    again.call(hook, **arguments)
    finally:
        os.environ.__class__ = known
    return sorted(name for name in asked if name.startswith("GUIDEWAY_"))


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
    made += _rich_results(request)
    return made


def _rich_results(request: Request) -> list[GenerationResult]:
    """Ends of which there is more to say: several outputs, reports of modifiers, parts that may be missing."""
    reports = {"a modifier": {"seen": 3, "of": {"words": ["a", {"b": None}], "share": 0.5}}, "another": {}}
    whole = Completion(
        text='{"a": "\ufffd"}',
        token_ids=(5, 6),
        stop="\n",
        strategy="reference",
        num_reasoning_tokens=1,
        answer_start=2,
        closed_early=True,
        valid=True,
        reports=reports,
        logprobs=(TokenLogprobs(5, -0.5, ((5, -0.5), (6, -math.inf))), TokenLogprobs(6, -math.inf)),
        parse=json.loads,
    )
    outputs: list[tuple[Completion, ...]] = [
        (whole,),
        tuple(replace(whole, index=i, finish_reason=reason) for i, reason in enumerate(FinishReason)),
        tuple(replace(whole, index=i, reports={}, logprobs=(), valid=False) for i in (2, 0, 1)),
        (
            Completion(stop=7, valid=None),
            Completion(index=1, text="\0", finish_reason=FinishReason.ABORT, reports=reports),
        ),
        (Completion(finish_reason=FinishReason.REFUSED, error=InvalidRequest("it is too long", field="prompt")),),
        (Completion(finish_reason=FinishReason.INTERNAL_ERROR, error=GuidewayError()),),
    ]
    prompt_logprobs = (None, *(TokenLogprobs(token_id, -0.5) for token_id in request.prompt_token_ids[1:9]))
    ids = request.prompt_token_ids
    return [
        GenerationResult(request_id=request.request_id, prompt_token_ids=ids, outputs=each, prompt_logprobs=told)
        for each, told in zip(outputs, (None, prompt_logprobs) * 3, strict=True)
    ]


def as_bytes(value: object) -> bytes:
    """`value` in a form that shows any change, also one of what a constraint keeps of its text."""
    arguments = value.values() if isinstance(value, dict) else (value,)
    constraints = [each.params.constraint for each in arguments if isinstance(each, Request | Submission)]
    return pickle.dumps((value, [each.parsed for each in constraints if isinstance(each, JsonSchema)]))
