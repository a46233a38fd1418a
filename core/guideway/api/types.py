"""The nouns of a request: constraint, sampling parameters, request, result.

All are frozen values. Nothing here judges them: a value of any content can be written down, and admission says what
is wrong with it (`InvalidRequest`), so that one bad request in a batch never costs its neighbors.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self, TypeAlias, TypeVar, get_args

from guideway.api.options import Range, known_fields_only, short_repr
from guideway.errors import GuidewayError, InvalidGrammar

__all__ = [
    "MAX_WHITESPACE",
    "WHITESPACE",
    "Choice",
    "Companion",
    "Completion",
    "Constraint",
    "FinishReason",
    "GenerationResult",
    "Grammar",
    "JsonObject",
    "JsonSchema",
    "OnUnenforced",
    "Regex",
    "Request",
    "SamplingParams",
    "SequenceInfo",
    "StructuralTag",
    "Submission",
    "TokenLogprobs",
    "Whitespace",
]

T = TypeVar("T")

Whitespace: TypeAlias = Literal["bounded", "compact", "spaced", "any"]
"""White space between two JSON tokens; before the first and after the last there is none.

``bounded``: at most `MAX_WHITESPACE` characters in a row. ``compact``: none. ``spaced``: one space after each comma and
each colon and none elsewhere, as ``json.dumps`` writes by default. ``any``: what JSON allows, without bound. A strategy
may allow less than ``bounded`` and ``any`` say, and never more; inside strings none of them means anything.
"""

OnUnenforced: TypeAlias = Literal["report", "refuse", "check"]
"""The policy for a constraint that the strategy serving it would not enforce in full.

``report``: it is served, and `Completion.unenforced` names the rest. ``refuse``: it is refused before the first token.
``check``: it is served, and each finished text is judged as a whole: `Completion.valid`.
"""

WHITESPACE: tuple[Whitespace, ...] = get_args(Whitespace)

MAX_WHITESPACE = 64
"""Spaces, tabs and line ends in a row, in ``bounded`` white space."""


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """A stop token, the end of the grammar, or a modifier that said it is finished."""
    LENGTH = "length"
    """`SamplingParams.max_tokens` or the model's context was used up."""
    ABORT = "abort"
    """The caller gave it up."""
    REFUSED = "refused"
    """It never started, or ran out of memory: `GenerationResult.error` is an `InvalidRequest` that says what to
    change."""
    INTERNAL_ERROR = "internal_error"
    """A plugin or the host failed; `GenerationResult.error` names plugin, phase and cause."""


@dataclass(frozen=True)
class Constraint(ABC):
    """The form that the output must obey. `strategy` names a configured grammar strategy; None lets the host choose."""

    strategy: str | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind a `GrammarStrategy` lists in `kinds`, such as ``json_schema``."""

    @abstractmethod
    def source(self) -> str:
        """The constraint as canonical text, part of its cache key. Raises `InvalidGrammar` if it is malformed."""

    @property
    def spacing(self) -> Whitespace | None:
        """The white space of its JSON, part of its cache key; None for a constraint that is not about JSON. Raises
        `InvalidGrammar` if it is no `Whitespace`."""
        return None

    def frozen(self) -> Self:
        """The constraint, out of reach of later changes to what it was made of. Text is taken as it is, unread; raises
        `InvalidGrammar` where anything else is malformed."""
        return self


@dataclass(frozen=True)
class _Spaced(Constraint):
    """A constraint with JSON in its outputs."""

    whitespace: Whitespace | None = field(default=None, kw_only=True)
    """The white space of its JSON; None: what the operator chose, ``bounded`` by default. Strategies read `spacing`."""

    @property
    def spacing(self) -> Whitespace:
        if self.whitespace is None:
            return "bounded"
        if self.whitespace not in WHITESPACE:
            raise InvalidGrammar(
                f"whitespace must be one of {', '.join(WHITESPACE)}, not {short_repr(self.whitespace)}",
                field="constraint.whitespace",
            )
        return self.whitespace


class _JsonConstraint(_Spaced):
    """A constraint that is JSON itself. What is learned from a text is kept beside the fields: it is no part of the
    value, and stays behind when the constraint is pickled. Of a mapping, which may change, nothing is kept."""

    _field: ClassVar[str]
    _what: ClassVar[str]

    def source(self) -> str:
        given = getattr(self, self._field)
        if isinstance(given, _CanonicalJson):
            return given
        return self._read[0] if isinstance(given, str) else _read_json(given, self._what)[0]

    @property
    def parsed(self) -> Any:
        """The JSON value, whose parts are dicts and lists. It is shared: whoever needs another one copies it. Raises
        `InvalidGrammar` as `source` does."""
        return self._read[1] if isinstance(getattr(self, self._field), str) else json.loads(self.source())

    def cached(self, find: Callable[[Any], T], part: Any = None) -> T:
        """``find(parsed)``, or ``find(part)`` of a part of it, called once for as long as the constraint lives. `find`
        is a function of its argument alone, and its result is shared. What it raises is not kept."""
        value = self.parsed if part is None else part
        if not isinstance(getattr(self, self._field), str):
            return find(value)
        kept = vars(self).setdefault("_found", {})
        key = (find, id(value))
        if key not in kept:
            kept[key] = find(value)
        found: T = kept[key]
        return found

    def frozen(self) -> Self:
        if type(getattr(self, self._field)) in (str, _CanonicalJson):
            return self
        source: dict[str, Any] = {self._field: self.source()}
        return replace(self, **source)

    @cached_property
    def _read(self) -> tuple[str, Any]:
        """Source and value of a text."""
        return _read_json(getattr(self, self._field), self._what)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class JsonSchema(_JsonConstraint):
    """JSON that validates against a schema, given as a dict, a bool or JSON text.

    The order of keys is kept: it decides the order of properties in the output.
    """

    schema: Mapping[str, Any] | bool | str

    _field: ClassVar[str] = "schema"
    _what: ClassVar[str] = "JSON schema"

    @property
    def kind(self) -> str:
        return "json_schema"


@dataclass(frozen=True)
class JsonObject(_Spaced):
    """Any JSON object."""

    @property
    def kind(self) -> str:
        return "json_object"

    def source(self) -> str:
        return "{}"


@dataclass(frozen=True)
class Regex(Constraint):
    """Text that matches a regular expression as a whole, as Python's `re.fullmatch` reads it. A strategy that lacks
    something refuses the expression, or names what it reads otherwise, as ``regex:boundary``."""

    pattern: str

    @property
    def kind(self) -> str:
        return "regex"

    def source(self) -> str:
        return _text(self.pattern, "regex pattern")


@dataclass(frozen=True)
class Choice(Constraint):
    """Exactly one of several strings."""

    choices: Sequence[str]

    @property
    def kind(self) -> str:
        return "choice"

    def source(self) -> str:
        if isinstance(self.choices, str | bytes) or not isinstance(self.choices, Sequence) or not self.choices:
            raise InvalidGrammar("choices must be a list of at least one string", field="constraint.choices")
        for choice in self.choices:
            _text(choice, "each choice")
        return json.dumps(list(self.choices), ensure_ascii=False)

    def frozen(self) -> Self:
        self.source()
        return replace(self, choices=tuple(self.choices))


@dataclass(frozen=True)
class Grammar(Constraint):
    """A context-free grammar in a declared dialect, such as ``lark``, ``ebnf`` (xgrammar's GBNF) or ``gbnf``.

    The dialect is never guessed: the same text can mean two languages in two dialects.
    """

    text: str
    dialect: str

    @property
    def kind(self) -> str:
        return f"grammar:{self.dialect}"

    def source(self) -> str:
        if not isinstance(self.dialect, str) or not re.fullmatch(r"[\w.-]{1,64}", self.dialect):
            raise InvalidGrammar(
                f"the dialect of a grammar is one word, such as 'lark', after its text, not {str(self.dialect)[:40]!r}",
                field="constraint.dialect",
            )
        return _text(self.text, "grammar")


@dataclass(frozen=True)
class StructuralTag(_JsonConstraint):
    """Free text with tagged regions that obey a schema of their own, in the ``structural_tag`` JSON format of
    vLLM, SGLang and xgrammar; a dict or JSON text. `whitespace` is that of regions with a JSON schema."""

    tag: Mapping[str, Any] | str

    _field: ClassVar[str] = "tag"
    _what: ClassVar[str] = "structural tag"

    @property
    def kind(self) -> str:
        return "structural_tag"


CONSTRAINTS: tuple[type[Constraint], ...] = (JsonSchema, JsonObject, Regex, Choice, Grammar, StructuralTag)
"""All constraints, in the order in which messages name them. `guideway.runtime.guard.kinds` says how each is served."""


class _CanonicalJson(str):
    """The canonical text that `_read_json` made, kept so that it is made once."""

    __slots__ = ()


def _read_json(value: object, what: str) -> tuple[str, Any]:
    """`value`, or the value its text denotes, as compact JSON in its own key order; and that value."""
    try:
        if isinstance(value, _CanonicalJson):
            return value, json.loads(value)
        parsed = strict_json(value) if isinstance(value, str) else value
        text = json.dumps(parsed, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_dict)
        text.encode()
        _check_keys(parsed)  # after the dump, which has found any circle
    except RecursionError as error:
        raise InvalidGrammar(f"{what} is nested too deeply") from error
    except Exception as error:  # besides json's own, whatever a stranger's mapping raises
        raise InvalidGrammar(f"{what} is not JSON: {error}") from error
    return _CanonicalJson(text), parsed


def strict_json(text: str) -> Any:
    """The value of JSON text. Raises ValueError, also for a key that an object has twice, and for NaN and infinity."""
    return json.loads(text, object_pairs_hook=unique_keys, parse_constant=_refuse_constant)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON text; a key written twice would lose a value without a word."""
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {next(key for key in counts if counts[key] > 1)!r} appears twice in one object")
    return found


def _check_keys(value: object) -> None:
    """Refuse keys that are no strings, which `json` would turn into some."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            for key in item:
                if not isinstance(key, str):
                    raise TypeError(f"the key {key!r} is not a string")
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item


def _as_dict(value: object) -> object:
    """A mapping that is no dict, as a dict; `json` asks for what it cannot write itself."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidGrammar(f"{what} must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidGrammar(f"{what} contains a lone surrogate, which is not valid Unicode text; remove it") from error
    return value


Positive: TypeAlias = Annotated[int, Range(1)]
Share: TypeAlias = Annotated[float, Range(above=0, most=1)]
Penalty: TypeAlias = Annotated[float, Range(-1e3, 1e3)]
Switch: TypeAlias = Annotated[bool, "True or False"]
Temperature: TypeAlias = Annotated[
    float, lambda value: value == 0 or 1e-3 <= value <= 1e3, "0 (greedy) or a number from 0.001 to 1000"
]
"""Beyond its range, as beyond that of penalties, logits in float32 overflow or come out equal."""
Repetition: TypeAlias = Annotated[float, Range(1e-3, 1e3), "a number from 0.001 to 1000, 1 for no change"]


@known_fields_only
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The parameters by which one prompt is continued. Checked at admission, not here.

    Admission also makes one value of what may be written in several ways: numbers of other libraries, such as NumPy's,
    become Python's own, and None, where vLLM has it for no mapping or no list, an empty one.

    Logits pass, in this order: penalties, bias and bans of stop tokens; temperature, top-k, top-p, min-p, typical-p;
    the draw. The grammar mask and modifiers act before and after, as `Stage` says.

    This is the table of parameters: by a field's type admission checks it, and the flags of ``guideway generate`` and
    the keys of its input lines are these fields, with the first sentence of each docstring as help.
    """

    max_tokens: Annotated[Positive | None, "a whole number of at least 1, or None for the rest of the context"] = None
    """The most tokens to generate, at least 1; None: as many as the model's context leaves room for."""
    min_tokens: Annotated[int, Range(0)] = 0
    """Before this many tokens no stop token is drawn and no stop string looked for; where a grammar allows nothing
    but its end, the grammar wins and ``min_tokens`` is named in `Completion.unenforced`."""
    temperature: Temperature = 0.0
    """0 takes the most likely token each time (greedy, as in ``transformers``); above 0 draws."""
    top_k: Annotated[int, Range(0), "a whole number of at least 0, or 0 or -1 for all tokens"] = 0
    """Draw among the k most likely tokens; 0, or -1 as in vLLM: among all. (Fan et al., 2018)"""
    top_p: Share = 1.0
    """Draw among the fewest most likely tokens whose probabilities sum to this; in (0, 1], 1: among all. (Nucleus
    sampling; Holtzman et al., 2020)"""
    min_p: Annotated[float, Range(0, 1)] = 0.0
    """Draw among tokens at least this fraction as likely as the likeliest; in [0, 1], 0: among all.
    (Nguyen et al., 2024)"""
    typical_p: Share = 1.0
    """Draw among the fewest most typical tokens whose probabilities sum to this; most typical are those closest to the
    expected information; in (0, 1], 1: among all. (Locally typical sampling; Meister et al., 2022)"""
    repetition_penalty: Repetition = 1.0
    """Divides positive logits and multiplies negative ones of tokens in prompt or output; above 0, 1: no change. (CTRL;
    Keskar et al., 2019)"""
    frequency_penalty: Penalty = 0.0
    """Is subtracted from a token's logit for each time it is in the output, as in OpenAI's API."""
    presence_penalty: Penalty = 0.0
    """Is subtracted from a token's logit if it is in the output, as in OpenAI's API."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Is added to logits, by token id; ``-inf`` bans the token."""
    seed: Annotated[int, Range(0, 2**63 - 1)] | None = None
    """Makes draws repeatable; 0 to 2**63 - 1. None: a seed is drawn at admission."""
    stop: str | tuple[str, ...] = ()
    """Strings that end the generation, wherever in the output they appear, also across tokens; not part of `text`. One
    alone may be given as it is. Where the text before it is not all that the constraint asks for, ``constraint`` is
    named in `Completion.unenforced`."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the generation besides the vocabulary's own."""
    ignore_eos: Switch = False
    """True if the vocabulary's own stop tokens end nothing; for benchmarks."""
    n: Positive = 1
    """The number of sequences to return."""
    best_of: Annotated[Positive | None, "a whole number of at least 1, or None for n"] = None
    """The number of sequences to generate; the `n` with the highest mean log-probability are returned, best first;
    None: `n`."""
    logprobs: int | None = None
    """Return the raw log-probability of each generated token and of this many most likely ones, 0 or more; raw means
    of the model's own logits, before anything changed them. None: return none."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    echo: Switch = False
    """True if `text` begins with the text of the prompt."""
    priority: Annotated[int, Range(-(2**31), 2**31 - 1)] = 0
    """Lower runs first."""
    constraint: Constraint | Any | None = None
    """The form that the output must obey: a `Constraint`, or in guideway's engine what `guideway.objects.constraint_of`
    takes, such as a type."""
    on_unenforced: OnUnenforced | None = None
    """The policy for a constraint of which not all can be enforced; None: what the operator chose, ``report`` by
    default."""
    max_retries: Annotated[int, Range(0, 100)] = 0
    """The number of times that an invalid output is drawn again, each time with another seed; with
    ``on_unenforced="check"``."""
    close: Switch = True
    """True if the last tokens of its limit are kept to complete what the constraint asks for."""
    reasoning: Annotated[bool | None, "True or False, or None where the configuration says"] = None
    """True if the output begins with reasoning, and the constraint after its marker; None: where the configuration has
    a marker and the prompt does not end with it."""
    thinking_token_budget: Annotated[Positive | None, "a whole number of at least 1, or None for no budget"] = None
    """So many tokens of reasoning at most, at least 1; then its marker is forced. None: as many as leave room for the
    answer that the constraint asks for."""
    modifiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Configured logit modifiers this request uses, each with its options for this request."""

    @property
    def num_sequences(self) -> int:
        """The number of sequences that are generated."""
        return self.n if self.best_of is None else self.best_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The request as a caller sent it, before a host tokenizes it. Only the form of the prompt has been looked at: what
    else is wrong with it may be found later."""

    request_id: str
    prompt: str | tuple[int, ...] | tuple[str, str] | tuple[Mapping[str, Any], ...] | None
    """Text, token ids, a pair of texts or chat messages, as it came; None where the host knows its token ids alone. A
    workflow of a stranger's may take more. In a message, as in a tool, at most 100 lists and mappings are in one
    another: hosts refuse what is nested deeper."""
    params: SamplingParams
    """Those of its task, if that is not ``generate``, are `priority` alone."""
    task: str = "generate"
    """The task, such as ``generate``, ``embed``, ``rerank``, ``classify``."""
    prompt_token_ids: tuple[int, ...] | None = None
    """The token ids of the prompt, if the host knows them already."""
    tenant: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The tools that the chat template tells the model of beside the messages, in the form of OpenAI's API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt on its way through a host, after tokenization."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int = 0
    """`SamplingParams.seed`, or the seed drawn in its place."""
    task: str = "generate"
    """The task, such as ``generate``, ``embed``, ``rerank``, ``classify``."""
    prompt: str | None = None
    """The text of the prompt where the host knows it."""
    tenant: str = ""
    """On whose behalf: tenants share a busy host fairly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceInfo:
    """One of the sequences that continue a request's prompt."""

    index: int
    """0 for the first sequence of its request, 1 for the next, ... Part of every random number's address."""
    seed: int
    prompt_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Companion:
    """A sequence that runs beside another one: same generated tokens, another prompt. Never sampled."""

    prompt_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw natural log-probabilities at one position."""

    token_id: int
    """The token that stands there."""
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens and their log-probabilities, descending; as many as were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One generated sequence."""

    index: int = 0
    """`SequenceInfo.index`."""
    text: str = ""
    """The generated text, without stop and other special tokens and without the stop string that ended it. Bytes that
    are no character come as U+FFFD, as `transformers` decodes them; the text ends in one where the output was cut in
    the middle of a character."""
    token_ids: tuple[int, ...] = ()
    """The generated token ids, a final stop token or the tokens of a stop string included."""
    finish_reason: FinishReason = FinishReason.STOP
    stop: str | int | None = None
    """The stop string or stop token that ended it."""
    error: GuidewayError | None = None
    """Why it was refused or failed; None otherwise."""
    strategy: str | None = None
    """The grammar strategy that served the constraint."""
    unenforced: tuple[str, ...] = ()
    """Everything that was asked for and not enforced, by name; empty: all of it was. ``constraint`` stands here where
    a stop string or a modifier ended the output before it was complete, ``closing`` where its limit did."""
    num_reasoning_tokens: int = 0
    """The number of its tokens that are reasoning, the marker included."""
    answer_start: int = 0
    """The offset in `text` at which the reasoning and its marker end; without reasoning, where the generated text
    begins."""
    closed_early: bool = False
    """True if the output was kept from going on as the model would have, so that it is complete within its limit."""
    valid: bool | None = None
    """True if the text is what the constraint asks for; None: it was not checked (`SamplingParams.on_unenforced`), it
    failed or was given up, or that could not be found out."""
    reports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By modifier name what `LogitModifier.report` says of it."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One per generated token, if asked for."""
    parse: Callable[[str], Any] | None = field(default=None, repr=False, compare=False)
    """Makes the object of a complete answer, as what was given for a constraint has it."""

    @property
    def is_complete(self) -> bool:
        """True if the output ended by itself, and nothing cut what the constraint asks for."""
        return self.finish_reason is FinishReason.STOP and "constraint" not in self.unenforced

    @property
    def parsed(self) -> Any:
        """The answer as an object: an instance of the type that was given as constraint, the value of JSON, else text;
        made anew each time. None without a constraint, and where the output is not complete. Raises
        `guideway.InvalidAnswer` if it is no such object, which a strategy that left something out may bring about, and
        a type that judges more than its JSON Schema says."""
        return self.parse(self.answer) if self.parse is not None and self.is_complete else None

    @property
    def answer(self) -> str:
        """The text after the reasoning: what the constraint is about."""
        return self.text[self.answer_start :]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """The result of one prompt: `outputs`, and the first of them at hand as `text`, `token_ids` and so on."""

    request_id: str
    prompt_token_ids: tuple[int, ...] = ()
    outputs: tuple[Completion, ...] = (Completion(),)
    """`SamplingParams.n` of them, by index, or best first with `best_of`; a refused request has one."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """One per token of the prompt, None for the first, if asked for; fewer if it ended before."""

    @property
    def text(self) -> str:
        """The text of the first output."""
        return self.outputs[0].text

    @property
    def parsed(self) -> Any:
        """The object that the first output stands for."""
        return self.outputs[0].parsed

    @property
    def answer(self) -> str:
        """The answer of the first output, without its reasoning."""
        return self.outputs[0].answer

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids of the first output."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """The finish reason of the first output."""
        return self.outputs[0].finish_reason

    @property
    def error(self) -> GuidewayError | None:
        """The error of the first output."""
        return self.outputs[0].error

    @property
    def strategy(self) -> str | None:
        """The strategy that served the first output."""
        return self.outputs[0].strategy

    @property
    def unenforced(self) -> tuple[str, ...]:
        """The names of what was not enforced in the first output."""
        return self.outputs[0].unenforced

    @property
    def closed_early(self) -> bool:
        """`Completion.closed_early` of the first output."""
        return self.outputs[0].closed_early

    @property
    def valid(self) -> bool | None:
        """The verdict on the first output."""
        return self.outputs[0].valid

    @property
    def reports(self) -> Mapping[str, Mapping[str, Any]]:
        """The reports of modifiers on the first output."""
        return self.outputs[0].reports

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """The log-probabilities of the first output."""
        return self.outputs[0].logprobs
