"""Saboteurs of what is allowed, what compiles, and what supports says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar
from unittest.mock import patch

from guideway.api import (
    WHITESPACE,
    Choice,
    CompiledGrammar,
    Constraint,
    InvalidGrammar,
    JsonSchema,
    Regex,
    Support,
    UnsupportedGrammar,
    Vocabulary,
)
from guideway.json_schema import subschemas
from guideway_conformance.reference import regex as reference_regex
from guideway_conformance.reference.expressions import Language
from guideway_conformance.reference.strategy import ReferenceCompiled, Rest

from saboteurs import saboteur
from saboteurs.grammar.base import Compiled, Place, Sane


@saboteur("grammar.limits_are_rules_of_the_guard")
class LimitsOfItsOwn(Sane):
    """It has a limit that nobody counts."""

    limits = MappingProxyType({"characters": 500})


@saboteur("grammar.limits_are_rules_of_the_guard")
class LimitsWithoutEnd(Sane):
    """It has a limit that is no number of anything."""

    limits = MappingProxyType({"depth": -1})


@saboteur("grammar.a_regex_allows_exactly_its_matches")
class WholeCharactersOnly(Sane):
    """Tokens that end inside a character are refused."""

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            token = self.vocabulary.tokens[token_id]
            return super().is_legal(token_id) and token == token.decode(errors="ignore").encode()


@saboteur("grammar.what_is_accepted_is_json")
class RawQuotesWhereAClassIsRepeatedOften(Sane):
    """Writes the characters of a class as they are, quotes too, where a pattern repeats it more than 128 times; says
    that the pattern is not enforced."""

    def supports(self, constraint: Constraint) -> Support:
        found = super().supports(constraint)
        return replace(found, unenforced=frozenset({"pattern"})) if self.is_often(constraint) else found

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if self.is_often(constraint):
            constraint = Regex('"(?:.|\n){1,400}"')
        return super().compile(constraint)

    @staticmethod
    def is_often(constraint: Constraint) -> bool:
        schema = constraint.parsed if isinstance(constraint, JsonSchema) else None
        return isinstance(schema, Mapping) and "{1,129}" in str(schema.get("pattern"))


@saboteur("grammar.a_set_has_its_characters")
class ComplementsOfTheLastPart(Sane):
    """Puts what stands after the end of a part into the complement of a set, though another part
    that begins earlier has it."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        with patch.object(reference_regex, "without", self.without):
            return super().compile(constraint)

    @staticmethod
    def without(removed: reference_regex.Ranges) -> reference_regex.Ranges:
        kept, start = [], 0
        for low, high in sorted(removed):
            if low > start:
                kept.append((start, low - 1))
            start = high + 1
        return (*kept, (start, 0x10FFFF))


@saboteur("grammar.a_choice_allows_exactly_its_strings")
class ChoicesThatBeginOthers(Sane):
    """A choice that another one begins with is lost."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, Choice) and constraint.source():
            kept = [c for c in constraint.choices if not any(o != c and o.startswith(c) for o in constraint.choices)]
            constraint = Choice(kept)
        return super().compile(constraint)


@saboteur("grammar.a_choice_allows_exactly_its_strings")
class ChoicesThatComeLate(Sane):
    """A choice that one before it begins with is lost: its place is taken already."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, Choice) and constraint.source():
            every = list(constraint.choices)
            constraint = Choice([c for i, c in enumerate(every) if not any(o.startswith(c) for o in every[:i])])
        return super().compile(constraint)


@saboteur("grammar.a_choice_allows_exactly_its_strings")
class StripsChoices(Sane):
    """White space around a choice is lost."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, Choice) and constraint.source():
            constraint = Choice([choice.strip() for choice in constraint.choices])
        return super().compile(constraint)


@saboteur("grammar.a_choice_allows_exactly_its_strings")
class ChoicesArePatterns(Sane):
    """Choices that are regular expressions, all of them, are read as such."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, Choice) and constraint.source():
            try:
                return super().compile(Regex("|".join(f"({choice})" for choice in constraint.choices)))
            except (InvalidGrammar, UnsupportedGrammar):
                pass
        return super().compile(constraint)


@saboteur("grammar.outputs_of_the_language_are_accepted")
class NoNegativeNumbers(Sane):
    """A minus sign is never legal in JSON."""

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            is_json = isinstance(self.compiled.constraint, JsonSchema)
            return super().is_legal(token_id) and not (is_json and b"-" in self.vocabulary.tokens[token_id])


@saboteur("grammar.outputs_of_the_language_are_accepted")
class LongTokensOfJsonOnly(Sane):
    """In JSON a token of several bytes that ends a value is refused."""

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            is_json = isinstance(self.compiled.constraint, JsonSchema)
            token = self.vocabulary.tokens[token_id]
            return super().is_legal(token_id) and not (is_json and len(token) > 1 and token[-1:] in b'}]"')


@saboteur("grammar.other_texts_are_refused")
class NothingIsRequired(Sane):
    """`required` is ignored without a word."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, JsonSchema):
            schema = json.loads(constraint.source())
            for _, subschema in subschemas(schema) if isinstance(schema, dict) else ():
                if isinstance(subschema, dict):
                    subschema.pop("required", None)
            constraint = JsonSchema(schema)
        return super().compile(constraint)


@saboteur("grammar.other_texts_are_refused")
class TakesLineBreaks(Sane):
    """In a JSON string a line break may stand as it is."""

    class State(Place):
        def after(self, token_id: int) -> Rest:
            inner, found = self.compiled.inner, super().after(token_id)
            constraint = self.compiled.constraint
            is_string = isinstance(constraint, JsonSchema) and constraint.schema == {"type": "string"}
            is_break = self.vocabulary.tokens[token_id] == b"\n"
            if found is inner.NOTHING and is_string and is_break and self.state is not None:
                begun = inner.derive(self.state, ord("a"))
                return self.state if begun is not inner.NOTHING else found
            return found


@saboteur("grammar.walks_end_in_the_language")
class EndsInsideAnObject(Sane):
    """JSON may end after any quotation mark."""

    class State(Place):
        last = b""

        def push(self, token_id: int) -> None:
            super().push(token_id)
            self.last = self.vocabulary.tokens[token_id]

        def is_accepting(self) -> bool:
            cut = isinstance(self.compiled.constraint, JsonSchema) and self.last == b'"'
            return super().is_accepting() or (cut and not self.is_terminated())


@saboteur("grammar.every_declared_kind_compiles")
class DeclaresTooMuch(Sane):
    """It declares structural tags and compiles none."""

    kinds: ClassVar[frozenset[str]] = Sane.kinds | {"structural_tag"}

    def supports(self, constraint: Constraint) -> Support:
        if constraint.kind == "structural_tag":
            return Support(enforced=frozenset({"structural_tag"}))
        return super().supports(constraint)


@saboteur("grammar.a_valid_constraint_is_not_called_invalid")
class CallsItInvalid(Sane):
    """Calls invalid what it does not support."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if "anyOf" in constraint.source():
            raise InvalidGrammar("anyOf is too hard")
        return super().compile(constraint)


@saboteur("grammar.compile_raises_its_two_errors_only")
class ErrorsOfItsLibrary(Sane):
    """A pattern with a NUL raises ValueError."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if "\x00" in constraint.source():
            raise ValueError("embedded null character")
        return super().compile(constraint)


@saboteur("grammar.malformed_constraints_are_refused")
class TakesItLiterally(Sane):
    """A pattern that is no regular expression is taken for its own text."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        try:
            return super().compile(constraint)
        except InvalidGrammar:
            if not isinstance(constraint, Regex):
                raise
            return super().compile(Choice([constraint.source()]))


@saboteur("grammar.an_empty_language_is_refused")
class CompilesNothing(Sane):
    """A schema that allows nothing compiles to a matcher that is dead from the start."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint == JsonSchema(False):
            language = Language()
            inner = ReferenceCompiled(language, Rest(language.NOTHING, None), self.vocabulary, self.reference._tree)
            return Compiled(inner, constraint, self.State)
        return super().compile(constraint)


@saboteur("grammar.compiling_twice_gives_the_same")
class CompilesOnce(Sane):
    """Compiles without its last token what was compiled before."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        known: set[str] = self.__dict__.setdefault("known", set())
        source = constraint.source()
        self.State = _LacksTheLast if source in known else Place  # type: ignore[misc]
        known.add(source)
        return super().compile(constraint)


@saboteur("grammar.equal_texts_of_two_kinds_are_two_constraints")
class CachesBySource(Sane):
    """Finds what was compiled by its text alone."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        known: dict[str, CompiledGrammar] = self.__dict__.setdefault("known", {})
        if constraint.source() not in known:
            known[constraint.source()] = super().compile(constraint)
        return known[constraint.source()]


@saboteur("grammar.a_regex_allows_exactly_its_matches")
class TokensOf32Bytes(Sane):
    """Looks at the first 32 bytes of a token."""

    class State(Place):
        def after(self, token_id: int) -> Rest:
            inner, state = self.compiled.inner, self.state
            token = self.vocabulary.tokens[token_id][:32]
            if state is None or not token:
                return inner.NOTHING
            for byte in token:
                state = inner.derive(state, byte)
            return state


class _LacksTheLast(Place):
    def is_legal(self, token_id: int) -> bool:
        return super().is_legal(token_id) and self.vocabulary.tokens[token_id][-1:] not in (b"a", b"1", b"e", b"}")


@saboteur("grammar.nbytes_is_a_number_of_bytes")
class CostsNothing(Sane):
    """nbytes is 0, so that no cache ever lets go of it."""

    class Grammar(Compiled):
        @property
        def nbytes(self) -> int:
            return 0


@saboteur("grammar.nbytes_is_a_number_of_bytes")
class CostsMegabytes(Sane):
    """nbytes is a number of megabytes."""

    class Grammar(Compiled):
        @property
        def nbytes(self) -> Any:
            return super().nbytes / 2**20


@saboteur("grammar.the_constructor_raises_its_error_only")
class KeyErrors(Sane):
    """An unknown option is a KeyError."""

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        for option in options:
            raise KeyError(option)
        super().__init__(vocabulary, options)


@saboteur("grammar.supports_never_raises")
class SupportsRaises(Sane):
    """An unknown keyword is not in its table."""

    def supports(self, constraint: Constraint) -> Support:
        if "x-unknown" in constraint.source():
            raise KeyError("x-unknown")
        return super().supports(constraint)


@saboteur("grammar.supports_never_raises")
class RefusesWithoutAReason(Sane):
    """The reason of a refusal is empty."""

    def supports(self, constraint: Constraint) -> Support:
        found = super().supports(constraint)
        return replace(found, reason="") if found.refused else found


@saboteur("grammar.supports_names_every_keyword")
class SaysNothing(Sane):
    """Supports says that all is well, and names nothing."""

    def supports(self, constraint: Constraint) -> Support:
        found = super().supports(constraint)
        return found if found.refused else Support()


@saboteur("grammar.enforced_keywords_are_enforced")
class DropsMaxLength(Sane):
    """`maxLength` is called enforced and ignored."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, JsonSchema):
            source = re.sub(r',?"maxLength":\d+', "", constraint.source())
            constraint = JsonSchema(source.replace("{,", "{"))
        return super().compile(constraint)


@saboteur("grammar.white_space_is_what_was_asked_for")
class ForgetsWhiteSpace(Sane):
    """It never asks what white space there should be."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, JsonSchema) and constraint.spacing:
            constraint = replace(constraint, whitespace=None)
        return super().compile(constraint)


@saboteur("grammar.white_space_is_what_was_asked_for")
class KeepsLanguagesBySource(Sane):
    """A schema of a list has the white space with which it was compiled first."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, JsonSchema) and '"array"' in constraint.source()[:20]:
            known: dict[str, Constraint] = vars(self).setdefault("known", {})
            constraint = known.setdefault(constraint.source(), constraint)
        return super().compile(constraint)


@saboteur("grammar.white_space_is_what_was_asked_for")
class BlanksWithoutEnd(Sane):
    """A space is legal wherever a JSON token could stand, however many there were."""

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            return super().is_legal(token_id) or self.is_blank(token_id)

        def is_blank(self, token_id: int) -> bool:
            is_json = isinstance(self.compiled.constraint, JsonSchema)
            return is_json and self.vocabulary.tokens[token_id] == b" " and not self.is_terminated()

        def push(self, token_id: int) -> None:
            if not super().is_legal(token_id):
                self.states.append(self.state)
            else:
                super().push(token_id)


@saboteur("grammar.texts_are_judged_by_what_they_mean")
class RepeatsNames(Sane):
    """A name may stand in its object already."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        inner = self.reference.compile(constraint)
        inner.start = inner.start._replace(cursor=None)
        return Compiled(inner, constraint, self.State)


@saboteur("grammar.constraints_are_not_changed")
class ChangesSchemas(Sane):
    """It writes into the schema it is given."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, JsonSchema) and isinstance(constraint.schema, dict):
            constraint.schema.setdefault("title", "untitled")
        return super().compile(constraint)


@saboteur("grammar.constraints_are_not_changed")
class ChangesWhatATextIsParsedTo(Sane):
    """Takes titles out of the properties of what a text was parsed to, which all who read the constraint share."""

    def supports(self, constraint: Constraint) -> Support:
        if isinstance(constraint, JsonSchema) and isinstance(constraint.parsed, dict):
            for named in constraint.parsed.get("properties", {}).values():
                named.pop("title", None)
        return super().supports(constraint)


@saboteur("grammar.a_regex_allows_exactly_its_matches")
class NoneIsAnyNumber(Sane):
    """Takes a repetition of none for one without bounds."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, Regex):
            constraint = Regex(constraint.source().replace("{0,0}", "*"))
        return super().compile(constraint)


@saboteur("grammar.a_regex_allows_exactly_its_matches")
class SetsOfBytes(Sane):
    """Takes a set of letters for one of their numbers, each written as a byte."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        found = super().compile(constraint)
        if constraint == Regex("[é]"):
            found = super().compile(Regex("[e]"))
        return found


@saboteur("grammar.a_valid_constraint_is_not_called_invalid")
class CallsLookaheadsInvalid(Sane):
    """Calls invalid what its parser does not know."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if "(?" in constraint.source():
            raise InvalidGrammar("unexpected ? after (")
        return super().compile(constraint)


@saboteur("grammar.a_valid_constraint_is_not_called_invalid")
class TooLargeWithoutAName(Sane):
    """Does not say what is missing where an expression is too large."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if re.search(r"\{\d{4,}", constraint.source()):
            raise UnsupportedGrammar("too large", feature="")
        return super().compile(constraint)


@saboteur("grammar.malformed_constraints_are_refused")
class AnyWordForWhiteSpace(Sane):
    """Takes a word for white space that it does not know for none at all."""

    def supports(self, constraint: Constraint) -> Support:
        return super().supports(self.known(constraint))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return super().compile(self.known(constraint))

    def known(self, constraint: Constraint) -> Constraint:
        is_unknown = isinstance(constraint, JsonSchema) and constraint.whitespace not in (None, *WHITESPACE)
        return replace(constraint, whitespace="compact") if is_unknown else constraint


@saboteur("grammar.enforced_keywords_are_enforced")
class NoneAtAllIsNoBound(Sane):
    """Takes a bound of 0 items for none."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, JsonSchema) and isinstance(constraint.parsed, dict):
            kept = {key: value for key, value in constraint.parsed.items() if key != "maxItems" or value}
            constraint = JsonSchema(kept, whitespace=constraint.whitespace)
        return super().compile(constraint)


@saboteur("grammar.every_case_of_a_keyword_is_enforced")
class ForgetsAWideLimit(Sane):
    """Enforces any maxLength that stands alone, and small ones beside other keywords."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, JsonSchema) and isinstance(constraint.parsed, dict):
            kept = dict(constraint.parsed)
            if len(kept) > 2 and kept.get("maxLength", 0) > 2:
                del kept["maxLength"]
                constraint = JsonSchema(kept, whitespace=constraint.whitespace)
        return super().compile(constraint)


@saboteur("grammar.a_pattern_means_what_python_says")
class FlagsAreNothing(Sane):
    """A flag is left out, and what it is for stays as it is."""

    def supports(self, constraint: Constraint) -> Support:
        return super().supports(_without_flags(constraint))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return super().compile(_without_flags(constraint))


def _without_flags(constraint: Constraint) -> Constraint:
    return Regex(constraint.pattern.replace("(?i:", "(")) if isinstance(constraint, Regex) else constraint


@saboteur("grammar.bounds_that_cross_leave_nothing")
class TheUpperBoundWins(Sane):
    """Drops the lower one of two bounds that cross."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        schema = constraint.parsed if isinstance(constraint, JsonSchema) else None
        if isinstance(schema, dict) and schema.get("minItems", 0) > schema.get("maxItems", 99):
            kept = {name: value for name, value in schema.items() if name != "minItems"}
            return super().compile(JsonSchema(kept, whitespace=constraint.whitespace))  # type: ignore[attr-defined]
        return super().compile(constraint)


@saboteur("grammar.white_space_is_what_was_asked_for")
class BlanksInEmptyArrays(Sane):
    """Compact JSON has a blank in an empty array."""

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            token = self.vocabulary.tokens[token_id]
            is_compact = getattr(self.compiled.constraint, "spacing", None) == "compact"
            if is_compact and token == b" " and len(self.states) == 2 and not self.is_accepting():
                return super().is_legal(self.vocabulary.tokens.index(b"]"))
            return super().is_legal(token_id)

        def push(self, token_id: int) -> None:
            token = self.vocabulary.tokens[token_id]
            is_blank = token == b" " and self.after(token_id) is self.compiled.inner.NOTHING
            self.states.append(self.state) if is_blank else super().push(token_id)
