"""llguidance as a grammar strategy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import numpy as np
from guideway.api import (
    WHITESPACE,
    Choice,
    Constraint,
    DeadEnd,
    FillJob,
    Grammar,
    GrammarExample,
    GrammarStrategy,
    InvalidGrammar,
    JsonObject,
    JsonSchema,
    Regex,
    StructuralTag,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    excerpt,
    parse_options,
)
from guideway.api.bitmask import empty_rows
from guideway.json_schema import WritingRule, in_a_row, names_may_run_out
from guideway.json_schema.expressions import python, python_reads, spelled_out
from guideway.json_schema.support import SupportTable, Table
from llguidance import LLMatcher, LLParserLimits

from guideway_llguidance import json_content
from guideway_llguidance.matcher import MAX_MESSAGE, NO_TOKEN, LlguidanceCompiled, LlguidanceMatcher, is_dead_end
from guideway_llguidance.structural_tag import SpecialTokens, translate
from guideway_llguidance.tokenizer import Borders, build_tokenizer

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask
    from guideway.json_schema import Schema
    from numpy.typing import NDArray


MAX_STATES = 30_000
"""Maximum states of one lexer, at 1 to 2 KB each; llguidance's default of 250,000 would take half a gigabyte for each
grammar."""

MAX_ITEMS = 10_000
"""Maximum items of the parser after a byte; llguidance's default of 2,000 would end outputs of some real schemas. A
mask takes at most 50,000, whatever this is."""

UNSURE = frozenset({"oneOf", "oneOf:disjoint", "allOf:several", "$ref", "pattern:anchor", "patternProperties:several"})
"""Keywords that llguidance compiles in some schemas only."""

BASE_NBYTES = 1 << 16
"""Bytes that the smallest grammar takes, roughly; measured with a vocabulary of 131072 tokens, as was the factor of
64."""

NO_FORCING = '%llguidance {"no_forcing": true}'
"""A line that turns off forcing. Where only one text can follow, llguidance's masks would allow only the first token of
its usual tokenization. We want all legal tokens, because a sequence may already contain another tokenization. The last
such line of a grammar counts."""

# Messages of llguidance about well-formed text. "too" is in messages about limits: too big, too many, too complex.
_EXCERPT = re.compile(r"\n\s*\d+ \| ")
_PLACE = re.compile(r"^(?:at )?(?P<line>\d+)\((?P<column>\d+)\): ")
_LARK = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?!/)(?:\\.|[^/\\\n])+/|//.*|#.*|(?P<open>["/])|.', re.DOTALL)
"""A string, a regular expression, a comment, the beginning of an unclosed string or regular expression, or another
character of a Lark grammar. A regular expression ends in its line, although llguidance looks for its end in all others.
"""
_JSON = re.compile(r"%json\s*")
_IN_REGEX = re.compile(r"regex parse error:\n    (?P<line>.*)\n    (?P<before> *)(?P<marks>\^+)\nerror: (?P<error>.*)")
_UNSUPPORTED = re.compile(r"support|implemented|\btoo\b|limit", re.IGNORECASE)
_ONE_OF = re.compile(r"oneOf constraints are not supported\. Enable 'coerce_one_of' option .*")
OVERLAPPING = (
    "the branches of a oneOf overlap, as far as it can tell, and it writes only those that exclude one another; make "
    "them differ by type or by a required property with a const, or say anyOf if more than one may match"
)
"""Replaces llguidance's advice, which is an option of its own that would read `oneOf` as `anyOf`."""


@dataclass(frozen=True)
class Options:
    """The settings of an operator under ``[grammar.llguidance]``."""

    """There are none."""


class Strategy(GrammarStrategy):
    """A grammar strategy with one `LLTokenizer` for all grammars; each is parsed once and copied for every matcher."""

    contract: ClassVar[str] = "1.0"
    name: ClassVar[str] = "llguidance"
    kinds: ClassVar[frozenset[str]] = frozenset(
        {"json_schema", "json_object", "regex", "choice", "grammar:lark", "structural_tag"}
    )
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork", "forced_tokens"})
    max_rollback: ClassVar[int | None] = None
    limits = MappingProxyType({"nul": 1000, "enum": 20_000, "nodes": 30_000, "literals": 400_000})
    examples: ClassVar[Sequence[GrammarExample]] = (
        GrammarExample(
            Grammar('start: "[" (NUMBER ("," NUMBER)*)? "]"\nNUMBER: /[0-9]+/', "lark"),
            (b"[]", b"[1,22,3]"),
            (b"[", b"[1,]", b"[01,x]", b""),
        ),
    )

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        parse_options(Options, options, where="grammar.llguidance")
        self._tokenizer, self._eos_token_id = build_tokenizer(vocabulary)
        self._borders = Borders(vocabulary.tokens)
        self._specials = SpecialTokens(vocabulary)
        self._rules = {word: WritingRule(vocabulary.tokens, word) for word in WHITESPACE}

    @property
    def takes(self) -> Set[str]:
        return SUPPORT.takes() - UNSURE

    def supports(self, constraint: Constraint) -> Support:
        try:
            if isinstance(constraint, JsonSchema):
                json_content.check(constraint, constraint.parsed)
                return SUPPORT.support(constraint)
            if isinstance(constraint, StructuralTag):
                return SUPPORT.support(constraint, self._translate(constraint)[1])
        except (InvalidGrammar, UnsupportedGrammar) as error:
            return Support(reason=str(error))
        if isinstance(constraint, Regex):
            return SUPPORT.support_of_regex(constraint)
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> LlguidanceCompiled:
        kind = constraint.kind
        if kind not in self.kinds:
            raise UnsupportedGrammar(f"{SUPPORT.library} has no constraints of kind {kind}", feature=kind)
        grammar = self._lark(constraint)
        nbytes = BASE_NBYTES + 64 * len(grammar)
        parse = partial(self._parse, constraint, grammar)
        # the output is one JSON text, so its bytes show where names are
        rule = self._rules[constraint.spacing] if isinstance(constraint, JsonSchema | JsonObject) else None
        return LlguidanceCompiled(
            parse,
            self._tokenizer,
            self._borders,
            self.vocabulary,
            self._eos_token_id,
            nbytes,
            rule,
            looks_ahead=names_may_run_out(constraint),
            validates=not isinstance(constraint, Grammar),  # llguidance's own lexeme ends change which tokens are valid
        )

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> NDArray[np.int32]:
        """Fill all rows together if there are no drafts: what is not llguidance's own work is done once for all."""
        rows, matchers = [job.first_row for job in jobs], cast("list[LlguidanceMatcher]", [job.matcher for job in jobs])
        try:
            if any(job.draft_token_ids for job in jobs) or not LlguidanceMatcher.fill_together(matchers, bitmask, rows):
                return super().fill(jobs, bitmask)
        except Exception:  # filling them one by one shows which job failed
            return super().fill(jobs, bitmask)
        accepted = np.zeros(len(jobs), dtype=np.int32)
        for i in np.flatnonzero(empty_rows(bitmask[in_a_row(rows)])).tolist():
            jobs[i].error = DeadEnd(NO_TOKEN)
            accepted[i] = -1
        return accepted

    def _parse(self, constraint: Constraint, grammar: str) -> LLMatcher:
        limits = LLParserLimits(max_lexer_states=MAX_STATES, max_items_in_row=MAX_ITEMS)
        native = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if not native.is_error():
            native.compute_bitmask()  # forces lazy errors: an empty language, a lexer that is too large
        if native.is_error():
            _refuse(constraint, native)
        return native

    def _lark(self, constraint: Constraint) -> str:
        source = constraint.source()
        match constraint:
            case JsonSchema():
                json_content.check(constraint, constraint.parsed)
                schema = json_content.spelled(constraint, constraint.parsed)
                grammar = "start: " + json_content.to_lark(schema, json_content.options(constraint.spacing))
            case JsonObject():
                grammar = "start: " + json_content.to_lark({"type": "object"}, json_content.options(constraint.spacing))
            case StructuralTag():
                grammar = self._translate(constraint)[0]
            case Regex():
                native = LLMatcher.grammar_from_regex(spelled_out(source, python()))
                grammar = json.loads(native)["grammars"][0]["lark_grammar"]
            case Choice():
                grammar = "start: " + " | ".join(map(json.dumps, json.loads(source)))
            case _:
                grammar = source
        return f"{grammar}\n{NO_FORCING}\n"

    def _translate(self, constraint: StructuralTag) -> tuple[str, list[Schema]]:
        return translate(constraint, self._specials)


def _refuse(constraint: Constraint, native: LLMatcher) -> NoReturn:
    kind, error = constraint.kind, native.get_error()
    if is_dead_end(error):
        raise InvalidGrammar("no text of this vocabulary matches the constraint")
    message = f"{SUPPORT.library}: {_readable(kind, error, constraint.source())}"
    # schemas and tags were checked already, and llguidance calls some unsatisfiable that are not
    if (
        kind in ("json_schema", "json_object", "structural_tag")
        or _UNSUPPORTED.search(error)
        or (kind == "regex" and python_reads(constraint.source()))
    ):
        raise UnsupportedGrammar(message, feature=kind)
    raise InvalidGrammar(message)


def _readable(kind: str, error: str, source: str) -> str:
    """Return llguidance's message without the state it appends and without its excerpt of the grammar, which the user
    may not have written."""
    text = _EXCERPT.split(error.split("<state>")[0].rstrip(), maxsplit=1)[0]
    if kind.startswith("grammar"):
        text = _in_lark(text, source)
    elif (found := _IN_REGEX.search(text)) and (kind != "regex" or len(text) > MAX_MESSAGE):
        what, line, at = "pattern", found["line"], len(found["before"])
        if kind == "regex":  # llguidance has it with classes spelled out
            wrong = line[at : at + len(found["marks"])]
            what, line, at = ("regex", source, source.find(wrong)) if wrong in source else ("regex", line, at)
        text = f"invalid {what}: {found['error']}{excerpt(line, at)}"
    elif kind == "regex":
        text = _PLACE.sub("", text)
    else:
        text = _ONE_OF.sub(OVERLAPPING, " ".join(_PLACE.sub("", text).split()))
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."


def _in_lark(text: str, source: str) -> str:
    """Return llguidance's message about a Lark grammar with a place in the user's text, whose end is the place of
    mistakes that llguidance finds in the lines after it."""
    place, what = _PLACE.search(text), _PLACE.sub("", text)
    at = None
    if place is not None:
        lines, number = source.split("\n"), int(place["line"]) - 1
        within = "".join(lines[number : number + 1]).encode()[: int(place["column"]) - 1]  # the column counts bytes
        before = sum(len(line) + 1 for line in lines[:number])
        at = min(before + len(within.decode(errors="ignore")), len(source.rstrip()))
    if what == "lexer error" and (unclosed := _unclosed(source)) is not None:
        at, what = unclosed, "the string or regular expression that begins here does not end in its line"
    elif what.startswith('failed to parse "%json"'):
        at, what = _broken_json(source), "the JSON after %json is malformed"
    elif at is not None and (found := _IN_REGEX.search(what)):
        at, what = at + 1 + len(found["before"]), f"invalid regular expression: {found['error']}"
    elif what == "no start rule found":
        what += "; write a rule `start: ...`"
    if at is None:
        return what
    what = what if len(what) <= MAX_MESSAGE // 2 else f"{what[: MAX_MESSAGE // 2]}..."
    return f"line {source.count(chr(10), 0, at) + 1}: {what}{excerpt(source, at)}"


def _unclosed(source: str) -> int | None:
    """Return the place in a Lark grammar where the first string or regular expression begins that does not end."""
    return next((found.start() for found in _LARK.finditer(source) if found["open"]), None)


def _broken_json(source: str) -> int | None:
    """Return the place of the first mistake in the JSON after `%json` in a Lark grammar."""
    for begin in _JSON.finditer(source):
        try:
            json.JSONDecoder().raw_decode(source, begin.end())
        except json.JSONDecodeError as error:
            return error.pos
    return None


def _measure() -> Table:
    from guideway.json_schema.prober import byte_vocabulary, probe

    return probe(Strategy(byte_vocabulary(), {}))


SUPPORT = SupportTable("llguidance", "guideway_llguidance", _measure)
"""The keywords that the installed llguidance enforces: a table per version, by ``python -m guideway_llguidance.probe``.
"""
