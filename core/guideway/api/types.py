"""The data types of a request: constraint, sampling parameters, request, result.

All are frozen values. Their constructors do not validate: admission does (`InvalidRequest`), so one bad request in a
batch never affects the others.
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
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn, Self, TypeAlias, TypeVar, get_args

from guideway.api.options import Range, known_fields_only, short_repr
from guideway.api.records import Records
from guideway.errors import GuidewayError, InvalidGrammar

__all__ = [
    "MAX_INDENTATION",
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
    "Loss",
    "Losses",
    "OnUnenforced",
    "PropertiesOrder",
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
"""White space between two JSON tokens; there is none before the first and after the last.

``bounded``: what pretty printers write: none, one space, or one line end (line feed, or carriage return and line feed)
and at most `MAX_INDENTATION` spaces and tabs. ``compact``: none. ``spaced``: one space after each comma and each colon
and none elsewhere, as ``json.dumps`` writes by default. ``any``: any white space of JSON, without bound. For
``bounded`` and ``any``, a strategy may allow less, but never more. White space inside strings is not affected.
"""

PropertiesOrder: TypeAlias = Literal["declared", "any"]
"""The order of an object's properties in an output.

``declared``: that of the schema, so each object has one. ``any``: every order. Where a schema is too complicated for
this, its own order holds, and `unenforced` has ``properties_order``.
"""

OnUnenforced: TypeAlias = Literal["report", "refuse", "check"]
"""The policy for a constraint that the chosen strategy does not enforce in full.

``report``: it is served, and `Completion.unenforced` names the rest. ``refuse``: it is refused before the first token.
``check``: it is served, and each finished text is validated: `Completion.valid`.
"""

WHITESPACE: tuple[Whitespace, ...] = get_args(Whitespace)
PROPERTIES_ORDERS: tuple[PropertiesOrder, ...] = get_args(PropertiesOrder)

MAX_INDENTATION = 40
"""Maximum number of spaces and tabs after a line end in ``bounded`` white space: ten levels of four."""


MOST_LOSSES_SHOWN = 8
"""Losses to list in text for people."""


class Loss(NamedTuple):
    """A keyword of a JSON Schema that is enforced only in part, or not at all, because no equivalent schema that the
    strategy's library compiles is known."""

    pointer: str
    """JSON pointer of the subschema with the keyword; ``...`` for further places that are only counted."""
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"`{self.keyword}` at {self.pointer}"


class Losses(tuple[Loss, ...]):
    """Losses in the order of the schema. As text it is short: ```uniqueItems` at #/properties/tags, and 16 more``."""

    __slots__ = ()

    def __str__(self) -> str:
        shown = ", ".join(map(str, self[:MOST_LOSSES_SHOWN]))
        return f"{shown}, and {len(self) - MOST_LOSSES_SHOWN} more" if len(self) > MOST_LOSSES_SHOWN else shown


class FinishReason(StrEnum):
    """The reason why a generation ended."""

    STOP = "stop"
    """A stop token, the end of the grammar, or a modifier ended it."""
    LENGTH = "length"
    """`SamplingParams.max_tokens` or the model's context was used up."""
    ABORT = "abort"
    """The caller aborted it."""
    REFUSED = "refused"
    """It never started, or ran out of memory; `GenerationResult.error` is an `InvalidRequest` that names the
    remedy."""
    INTERNAL_ERROR = "internal_error"
    """A plugin or the host failed; `GenerationResult.error` names plugin, phase and cause."""


@dataclass(frozen=True)
class Constraint(ABC):
    """A constraint on the output. `strategy` names a configured grammar strategy; None lets the host choose."""

    strategy: str | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind, as listed in `GrammarStrategy.kinds`, such as ``json_schema``."""

    @abstractmethod
    def source(self) -> str:
        """Return the constraint as canonical text, part of its cache key. Raises `InvalidGrammar` if it is
        malformed."""

    @property
    def spacing(self) -> Whitespace | None:
        """The white space of its JSON, part of its cache key; None for a constraint without JSON. Raises
        `InvalidGrammar` if it is not a `Whitespace`."""
        return None

    def frozen(self) -> Self:
        """Return a copy that later changes to mutable fields do not affect. Text is not parsed; raises
        `InvalidGrammar` if another value is malformed."""
        return self


@dataclass(frozen=True)
class _Spaced(Constraint):
    """A constraint whose outputs contain JSON."""

    whitespace: Whitespace | None = field(default=None, kw_only=True)
    """White space in the JSON; None: the operator's choice, ``bounded`` by default. Strategies read `spacing`."""

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
    """A constraint written in JSON. Facts derived from a text are cached in the instance, outside of the fields, and
    are not pickled. Nothing derived from a mapping is cached, since it may change."""

    _field: ClassVar[str]
    _what: ClassVar[str]

    def source(self) -> str:
        given = getattr(self, self._field)
        if isinstance(given, _CanonicalJson):
            return given
        return self._read[0] if isinstance(given, str) else _read_json(given, self._what)[0]

    @property
    def parsed(self) -> Any:
        """The JSON value, made from dicts and lists. It is shared: copy it before changing it. Raises `InvalidGrammar`
        as `source` does."""
        return self._read[1] if isinstance(getattr(self, self._field), str) else json.loads(self.source())

    def cached(self, find: Callable[[Any], T], part: Any = None) -> T:
        """Return ``find(parsed)``, or ``find(part)`` for a part of it, called at most once in the life of the
        constraint. `find` must depend only on its argument; its result is shared. Exceptions are not cached."""
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
        """The source and the value of a text."""
        return _read_json(getattr(self, self._field), self._what)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class JsonSchema(_JsonConstraint):
    """JSON that is valid under a schema, which is a dict, a bool or JSON text.

    The order of keys matters: it is the order of properties in the output, unless `properties_order` is ``any``.
    """

    schema: Mapping[str, Any] | bool | str
    properties_order: PropertiesOrder = field(default="declared", kw_only=True)
    """The order of properties, part of the cache key. The host sees to it: strategies do not read it."""

    _field: ClassVar[str] = "schema"
    _what: ClassVar[str] = "JSON schema"

    @property
    def kind(self) -> str:
        return "json_schema"

    @property
    def takes_any_order(self) -> bool:
        """True if properties may come in any order. Raises `InvalidGrammar` if `properties_order` is not a
        `PropertiesOrder`."""
        if self.properties_order not in PROPERTIES_ORDERS:
            raise InvalidGrammar(
                f"properties_order must be one of {', '.join(PROPERTIES_ORDERS)}, not "
                f"{short_repr(self.properties_order)}",
                field="constraint.properties_order",
            )
        return self.properties_order == "any"


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
    """Text that matches a regular expression as a whole, in the sense of Python's `re.fullmatch`. A strategy refuses
    expressions that it does not support, or reports a different reading by name, such as ``regex:boundary``."""

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

    The dialect is never guessed: a text can have different meanings in different dialects.
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
    """Free text with tagged regions that each have their own schema, in the ``structural_tag`` JSON format of vLLM,
    SGLang and xgrammar; a dict or JSON text. `whitespace` applies to regions with a JSON schema."""

    tag: Mapping[str, Any] | str

    _field: ClassVar[str] = "tag"
    _what: ClassVar[str] = "structural tag"

    @property
    def kind(self) -> str:
        return "structural_tag"


CONSTRAINTS: tuple[type[Constraint], ...] = (JsonSchema, JsonObject, Regex, Choice, Grammar, StructuralTag)
"""All constraints, in the order in which messages name them. `guideway.runtime.constraints.guard.kinds` defines how
each is served."""


class _CanonicalJson(str):
    """Canonical text from `_read_json`. The type marks it, so it is not parsed again."""

    __slots__ = ()


def _read_json(value: object, what: str) -> tuple[str, Any]:
    """Return as compact JSON `value`, or the value of the JSON text `value`, in its key order; and the value. Whole
    numbers are written as integers."""
    try:
        if isinstance(value, _CanonicalJson):
            return value, json.loads(value)
        parsed = strict_json(value) if isinstance(value, str) else value
        text = json.dumps(parsed, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_dict)
        text.encode()
        _check_keys(parsed)  # after the dump, which detects cycles
        if _WITH_ZERO.search(text):
            parsed = json.loads(text, parse_float=_number)
            text = json.dumps(parsed, ensure_ascii=False, separators=(",", ":"))
    except RecursionError as error:
        raise InvalidGrammar(f"{what} is nested too deeply") from error
    except Exception as error:  # a foreign mapping may raise anything
        raise InvalidGrammar(f"{what} is not JSON: {error}") from error
    return _CanonicalJson(text), parsed


def strict_json(text: str) -> Any:
    """Parse JSON text. Raises ValueError, also for duplicate keys of an object, NaN and infinity."""
    return json.loads(text, object_pairs_hook=unique_keys, parse_constant=_refuse_constant)


_WITH_ZERO = re.compile(r"\d\.0[,\]}]")
"""A whole number with a fraction in compact JSON: engines ignore ``"maxItems": 2.0``, or refuse it."""


def _number(text: str) -> int | float:
    """Return a number of compact JSON, as an integer if it is one that a double holds exactly."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) <= 2**53 else number


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the dict of a JSON object. Raises ValueError for a duplicate key, which would drop a value silently."""
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {next(key for key in counts if counts[key] > 1)!r} appears twice in one object")
    return found


_PLAIN = (str, int, float, bool, type(None))


def _check_keys(value: object) -> None:
    """Raise TypeError for keys that are not strings, which `json` would convert."""
    stack = [value]
    while stack:
        item = stack.pop()
        if type(item) in _PLAIN:  # most are, and asking whether one is a mapping takes ten times as long
            continue
        if isinstance(item, Mapping):
            for key in item:
                if not isinstance(key, str):
                    raise TypeError(f"the key {key!r} is not a string")
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item


def _as_dict(value: object) -> object:
    """Convert a mapping to a dict; `json` calls this for values that it cannot write."""
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
"""Outside of this range, or of the penalties' range, float32 logits overflow or become equal."""
Repetition: TypeAlias = Annotated[float, Range(1e-3, 1e3), "a number from 0.001 to 1000, 1 for no change"]


@known_fields_only
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The parameters of generating from one prompt. Validated at admission, not here.

    Admission also normalizes values: numbers of other libraries, such as NumPy's, become Python's, and None becomes an
    empty mapping or list where vLLM allows None.

    Logits are processed in this order: penalties, bias and bans of stop tokens; temperature, top-k, top-p, min-p,
    typical-p; the draw. `Stage` defines when the grammar mask and modifiers act.

    Admission checks each field by its type. The fields are also the flags of ``guideway generate`` and the keys of its
    input lines, with the first sentence of each docstring as help.
    """

    max_tokens: Annotated[Positive | None, "a whole number of at least 1, or None for the rest of the context"] = None
    """Maximum number of tokens to generate, at least 1; None: as many as fit into the model's context."""
    min_tokens: Annotated[int, Range(0)] = 0
    """Number of tokens before which stop tokens are not drawn and stop strings not searched for. If a grammar allows
    only a stop token, the grammar wins and `Completion.unenforced` names ``min_tokens``."""
    temperature: Temperature = 0.0
    """0: always take the most likely token (greedy, as in ``transformers``); above 0: draw."""
    top_k: Annotated[int, Range(0), "a whole number of at least 0, or 0 or -1 for all tokens"] = 0
    """Draw among the k most likely tokens; 0, or -1 as in vLLM: among all. (Fan et al., 2018)"""
    top_p: Share = 1.0
    """Draw among the fewest most likely tokens whose probabilities sum to at least this; in (0, 1], 1: among all.
    (Nucleus sampling; Holtzman et al., 2020)"""
    min_p: Annotated[float, Range(0, 1)] = 0.0
    """Draw among tokens whose probability is at least this fraction of the largest; in [0, 1], 0: among all. (Nguyen
    et al., 2024)"""
    typical_p: Share = 1.0
    """Draw among the fewest most typical tokens whose probabilities sum to at least this; a token is typical if its
    information is close to the expected information; in (0, 1], 1: among all. (Locally typical sampling; Meister et
    al., 2022)"""
    repetition_penalty: Repetition = 1.0
    """Divisor of positive logits, and factor of negative ones, of tokens in prompt or output; above 0, 1: no change.
    (CTRL; Keskar et al., 2019)"""
    frequency_penalty: Penalty = 0.0
    """Subtracted from a token's logit for each occurrence in the output, as in OpenAI's API."""
    presence_penalty: Penalty = 0.0
    """Subtracted from a token's logit if the token is in the output, as in OpenAI's API."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to logits, by token id; ``-inf`` bans the token."""
    seed: Annotated[int, Range(0, 2**63 - 1)] | None = None
    """Seed of reproducible draws, 0 to 2**63 - 1. None: drawn at admission."""
    stop: str | tuple[str, ...] = ()
    """Strings that end the generation, anywhere in the output, also across tokens; not part of `text`. A single string
    need not be in a tuple. If the text before is not complete under the constraint, `Completion.unenforced` names
    ``constraint``."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the generation, in addition to the vocabulary's stop tokens."""
    ignore_eos: Switch = False
    """True to continue after the vocabulary's stop tokens; for benchmarks."""
    n: Positive = 1
    """The number of sequences to return."""
    best_of: Annotated[Positive | None, "a whole number of at least 1, or None for n"] = None
    """The number of sequences to generate; the `n` with the highest mean log-probability are returned, best first;
    None: `n`."""
    logprobs: int | None = None
    """Return the log-probabilities of each generated token and of this many most likely ones; at least 0. None: return
    none."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """Distribution of `logprobs`: ``raw``, of the model's logits, or ``processed``, that of the draw. The latter is
    after masks, modifiers, penalties, temperature (if it is not 0) and filters. Needs `logprobs`."""
    records: Switch = False
    """Return what each generated token was drawn from; see `guideway.Records`."""
    prompt_logprobs: int | None = None
    """Return the raw log-probabilities of each token of the prompt and of this many most likely ones; at least 0."""
    echo: Switch = False
    """True if `text` begins with the text of the prompt."""
    priority: Annotated[int, Range(-(2**31), 2**31 - 1)] = 0
    """Lower runs first."""
    constraint: Constraint | Any | None = None
    """A `Constraint`; guideway's engine also takes the arguments of `guideway.objects.constraint_of`, such as a
    type."""
    on_unenforced: OnUnenforced | None = None
    """The policy for a constraint that cannot be enforced in full; None: the operator's choice, ``report`` by
    default."""
    max_retries: Annotated[int, Range(0, 100)] = 0
    """Maximum number of times to redraw an invalid output, each time with another seed; needs a type as constraint, or
    ``on_unenforced="check"``."""
    close: Switch = True
    """True to reserve the last tokens of the limit for completing the constrained output."""
    reasoning: Annotated[bool | None, "True or False, or None where the configuration says"] = None
    """True if the output begins with reasoning and the constraint applies after the end marker; None: True if the
    configuration has a marker and the prompt does not end with it."""
    thinking_token_budget: Annotated[Positive | None, "a whole number of at least 1, or None for no budget"] = None
    """Maximum number of reasoning tokens, at least 1; then the end marker is forced. None: as many as leave room for
    an answer under the constraint."""
    modifiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of the configured logit modifiers that this request uses, by name."""

    @property
    def num_sequences(self) -> int:
        """The number of sequences to generate."""
        return self.n if self.best_of is None else self.best_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request as the caller sent it, before the host tokenizes it. Only the form of the prompt has been
    validated."""

    request_id: str
    prompt: str | tuple[int, ...] | tuple[str, str] | tuple[Mapping[str, Any], ...] | None
    """Text, token ids, a pair of texts or chat messages; None if the host knows only token ids. Third-party workflows
    may take other types. Hosts refuse messages and tools with more than 100 nested lists and mappings."""
    params: SamplingParams
    """Sampling parameters; for tasks other than ``generate`` only `priority` is set."""
    task: str = "generate"
    """The task, such as ``generate``, ``embed``, ``rerank``, ``classify``."""
    prompt_token_ids: tuple[int, ...] | None = None
    """The token ids of the prompt, if the host already knows them."""
    tenant: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The tools for the chat template, in the format of OpenAI's API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A tokenized request."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int = 0
    """`SamplingParams.seed`, or the seed drawn in its place."""
    task: str = "generate"
    """The task, such as ``generate``, ``embed``, ``rerank``, ``classify``."""
    prompt: str | None = None
    """The text of the prompt, if the host knows it."""
    tenant: str = ""
    """The tenant that the request belongs to: tenants share a busy host fairly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceInfo:
    """One of the sequences that continue a request's prompt."""

    index: int
    """0 for the first sequence of its request, 1 for the next, ... An input of every random number."""
    seed: int
    prompt_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Companion:
    """A sequence that runs along with another one: same generated tokens, another prompt. Never sampled."""

    prompt_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities (natural logarithm) at one position."""

    token_id: int
    """The token at this position."""
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens and their log-probabilities, descending; as many as requested."""
    token: str = ""
    """The text of the token: the name of a special token; bytes that are not valid UTF-8 are U+FFFD."""
    top_tokens: tuple[str, ...] = ()
    """The texts of the tokens in `top`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One generated sequence."""

    index: int = 0
    """`SequenceInfo.index`."""
    text: str = ""
    """The generated text, without stop and other special tokens and without the stop string that ended it. Bytes that
    are not valid UTF-8 become U+FFFD, as `transformers` decodes them; a character that is cut at the end of the output
    becomes one too."""
    token_ids: tuple[int, ...] = ()
    """The generated token ids, including a final stop token or the tokens of a stop string."""
    finish_reason: FinishReason = FinishReason.STOP
    stop: str | int | None = None
    """The stop string or stop token that ended it."""
    error: GuidewayError | None = None
    """Why the sequence was refused or failed; None otherwise."""
    strategy: str | None = None
    """The grammar strategy that served the constraint."""
    unenforced: tuple[str, ...] = ()
    """The names of everything that was requested and not enforced. Contains ``constraint`` if a stop string or a
    modifier ended the output before it was complete, and ``closing`` if its limit did."""
    losses: Losses = field(default_factory=Losses)
    """The keywords in `unenforced` that the strategy was not given, because its schema was rewritten, with their
    places."""
    num_reasoning_tokens: int = 0
    """The number of reasoning tokens, including the marker."""
    answer_start: int = 0
    """The offset in `text` after the reasoning and its marker; without reasoning, the start of the generated text."""
    closed_early: bool = False
    """True if the output may have been changed so that it is complete within its limit."""
    valid: bool | None = None
    """True if the text satisfies the constraint, and the type that was given as constraint accepts it; None if it was
    not checked (`SamplingParams.on_unenforced`, `SamplingParams.max_retries`), failed or was aborted, or if the check
    cannot decide."""
    reports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Results of `LogitModifier.report`, by modifier name."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One per generated token, if requested."""
    records: Records | None = None
    """What each generated token was drawn from, if requested."""
    parse: Callable[[str], Any] | None = field(default=None, repr=False, compare=False)
    """Converts a complete answer to an object of the type that was given as constraint."""

    @property
    def is_complete(self) -> bool:
        """True if the output was not cut: it stopped, and is complete under its constraint."""
        return self.finish_reason is FinishReason.STOP and "constraint" not in self.unenforced

    @property
    def parsed(self) -> Any:
        """The answer as a new object: an instance of the type that was given as constraint, the value of JSON, or else
        text. None without a constraint, and if the output is not complete. Raises `guideway.InvalidAnswer` if the
        answer cannot be converted: the strategy may not have enforced the whole constraint, or the type may check more
        than its JSON Schema."""
        return self.parse(self.answer) if self.parse is not None and self.is_complete else None

    @property
    def answer(self) -> str:
        """The text after the reasoning, to which the constraint applies."""
        return self.text[self.answer_start :]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """The result of one prompt: `outputs`, with the fields of the first one as properties."""

    request_id: str
    prompt_token_ids: tuple[int, ...] = ()
    outputs: tuple[Completion, ...] = (Completion(),)
    """`SamplingParams.n` outputs, by index, or best first with `best_of`; a refused request has one."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """One per token of the prompt, None for the first, if requested; fewer if the request ended early."""

    @property
    def text(self) -> str:
        """The text of the first output."""
        return self.outputs[0].text

    @property
    def parsed(self) -> Any:
        """`Completion.parsed` of the first output."""
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
        """`Completion.unenforced` of the first output."""
        return self.outputs[0].unenforced

    @property
    def losses(self) -> Losses:
        """`Completion.losses` of the first output."""
        return self.outputs[0].losses

    @property
    def closed_early(self) -> bool:
        """`Completion.closed_early` of the first output."""
        return self.outputs[0].closed_early

    @property
    def valid(self) -> bool | None:
        """`Completion.valid` of the first output."""
        return self.outputs[0].valid

    @property
    def reports(self) -> Mapping[str, Mapping[str, Any]]:
        """The reports of modifiers on the first output."""
        return self.outputs[0].reports

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """The log-probabilities of the first output."""
        return self.outputs[0].logprobs

    @property
    def records(self) -> Records | None:
        """The records of the first output."""
        return self.outputs[0].records
