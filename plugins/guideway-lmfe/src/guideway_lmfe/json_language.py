"""lm-format-enforcer's JSON parser, with its mistakes corrected.

It would count some array items twice, and not count the blanks at the beginning of a string or a name. It would allow a
comma before ``}``, ``1.e5``, fractions and negative exponents of integers, raw control characters in strings, and white
space before and after the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from guideway.api import UnsupportedGrammar
from guideway.json_schema import Schema, prefix_errors
from guideway.json_schema.ecma import with_spelled_patterns
from lmformatenforcer import JsonSchemaParser  # type: ignore[import-untyped]
from lmformatenforcer.characterlevelparser import (  # type: ignore[import-untyped]
    CharacterLevelParser,
    CharacterLevelParserConfig,
    SequenceParser,
    UnionParser,
)
from lmformatenforcer.consts import BACKSLASH  # type: ignore[import-untyped]
from lmformatenforcer.external.jsonschemaobject import JsonSchemaObject  # type: ignore[import-untyped]
from lmformatenforcer.jsonschemaparser import (  # type: ignore[import-untyped]
    ListParsingState,
    NumberParsingState,
    ObjectParsingStage,
    ObjectParsingState,
    StringParsingState,
)
from lmformatenforcer.regexparser import RegexParser  # type: ignore[import-untyped]

from guideway_lmfe.places import Language, Place, other_than
from guideway_lmfe.regex_language import regex_parser
from guideway_lmfe.schema import Rewriting
from guideway_lmfe.tokens import Ids, JsonTokens

ASCII = "".join(map(chr, range(32, 128)))
WHITESPACE = frozenset(" \t\n\r")
CONTROLS = frozenset(map(chr, range(32)))
NO_LIMIT = 1 << 30


def json_language(schema: Schema, source: str) -> Language:
    """Return the language of a checked schema. Raises `InvalidGrammar` and `UnsupportedGrammar`."""
    rewriting = Rewriting(with_spelled_patterns(schema) if '"pattern"' in source else schema)
    cache: dict[str, RegexParser] = {}
    named = {character for character in source if ord(character) > 127}
    for place, pattern in rewriting.patterns():
        with prefix_errors(place):
            cache[pattern] = regex_parser(pattern)
        named |= {c for c in cache[pattern].context.pattern.alphabet if isinstance(c, str) and ord(c) > 127}
    config = CharacterLevelParserConfig(
        alphabet="".join([*ASCII, *sorted(named), other_than(named)]),
        max_consecutive_whitespaces=NO_LIMIT,  # it counts spaces inside strings
        force_json_field_order=False,
        max_json_array_length=0,
    )
    for parser in cache.values():
        parser.config = config
    context = JsonSchemaParser._Context()
    context.regex_parser_cache = cache  # the default is shared by all schemas, whatever their alphabets
    context.alphabet_without_quotes = config.alphabet.replace('"', "")
    try:
        context.model_class = JsonSchemaObject(**rewriting.schema)
        parser = JsonSchemaParser(context, config)
        _flatten(parser)
        parser.get_allowed_characters()
    except Exception as error:
        message = f"lm-format-enforcer does not compile this schema: {type(error).__name__}: {str(error)[:200]}"
        raise UnsupportedGrammar(message, feature="json_schema") from error
    return Language(parser, named, legal, can_end, read)


def legal(parser: CharacterLevelParser) -> frozenset[str]:
    """Return the characters that `parser` may read."""
    match parser:
        case JsonSchemaParser():
            return _of_stack(parser)
        case UnionParser(parsers=parsers):
            return _of_either(parsers)
        case SequenceParser(parsers=parsers):
            found: set[str] = set()
            for part in parsers:
                found |= legal(part)
                if not part.can_end():
                    break
            return frozenset(found)
    allowed = set(parser.get_allowed_characters())
    match parser:
        case NumberParsingState(parsed_string=text, allow_floating_point=fraction):
            if not fraction:
                allowed -= set(".eE")
            elif text.endswith("."):
                allowed -= set("eE")
        case StringParsingState(seen_opening_quote=True, seen_closing_quote=False, require_opening_quote=True):
            allowed -= CONTROLS
        case ObjectParsingState(current_stage=ObjectParsingStage.PARSING_KEY_OR_END, existing_keys=keys) if keys:
            allowed.discard("}")  # it would follow a comma
    return frozenset(allowed)


def _of_either(parsers: Sequence[CharacterLevelParser]) -> frozenset[str]:
    found = frozenset[str]().union(*map(legal, parsers))
    # each string would push its own parser for the rest of an escape onto the stack that they share
    escaping = sum(isinstance(part, StringParsingState) and BACKSLASH in legal(part) for part in parsers)
    return found - {BACKSLASH} if escaping > 1 else found


def read(parser: CharacterLevelParser, character: str) -> CharacterLevelParser:
    """Return `parser` after the legal `character`."""
    if isinstance(parser, UnionParser):
        after = [read(part, character) for part in parser.parsers if character in legal(part)]
        return after[0] if len(after) == 1 else UnionParser(after)
    following = parser.add_character(character)
    if (
        character == ","
        and isinstance(parser, JsonSchemaParser)
        and isinstance(parser.object_stack[-1], ListParsingState)
    ):
        _count_once(following)
    if isinstance(following, JsonSchemaParser) and following.object_stack:
        if character in WHITESPACE:
            following.object_stack[-1] = _with_blank(following.object_stack[-1], character)
        _flatten(following)
    return following


def _flatten(parser: JsonSchemaParser) -> None:
    """Make the choice on top of the stack one without choices in it. lm-format-enforcer gives each object of a choice
    its own stack, but those of a choice inside a choice one stack, onto which each would push the same name."""
    if isinstance(parser.object_stack[-1], UnionParser):
        parser.object_stack[-1] = UnionParser(list(_alternatives(parser.object_stack[-1])))


def _alternatives(parser: CharacterLevelParser) -> Iterator[CharacterLevelParser]:
    if isinstance(parser, UnionParser):
        for part in parser.parsers:
            yield from _alternatives(part)
    else:
        yield parser


def _with_blank(parser: CharacterLevelParser, blank: str) -> CharacterLevelParser:
    """Return `parser` after a blank at the beginning of a string, which it mistakes for one before the string."""
    match parser:
        case UnionParser(parsers=parsers):
            return UnionParser([_with_blank(part, blank) for part in parsers])
        case StringParsingState(
            require_opening_quote=True, seen_opening_quote=True, seen_closing_quote=False, parsed_string=""
        ):
            string = parser._clone()
            string.parsed_string = blank
            if string.regex_parser:
                string.regex_parser = string.regex_parser.add_character(blank)
            return string
    return parser


def _count_once(parser: CharacterLevelParser) -> None:
    """Undo the second count of an item that ends by itself (``true`` does, ``1`` does not): it is counted at its end,
    and again at its comma."""
    parsers = parser.parsers if isinstance(parser, UnionParser) else [parser]
    lists = {id(part.object_stack[-2]): part.object_stack[-2] for part in parsers}
    for counted in lists.values():
        counted.num_items_seen -= 1


def _of_stack(parser: JsonSchemaParser) -> frozenset[str]:
    parser.context.active_parser = parser
    found: set[str] = set()
    for part in reversed(parser.object_stack):
        found |= legal(part)
        if not part.can_end():
            break
    if not parser.last_non_whitespace_character or parser.can_end():
        found -= WHITESPACE
    return frozenset(found)


def can_end(parser: CharacterLevelParser) -> bool:
    return bool(parser.can_end())


def legal_tokens(language: Language, place: Place, tokens: JsonTokens) -> Iterator[Ids]:
    """Yield the ids of the tokens that are legal at `place`. Inside a string without restrictions, only the part of a
    token after its plain characters is tried."""
    if place.pending:
        yield from tokens.begun.legal(language, place)
        return
    string = _free_string(place.parser)
    if string is None:
        yield from tokens.all.legal(language, place)
        return
    length = len(string.parsed_string)
    low = max((string.min_length or 0) - length, 0)
    high = NO_LIMIT if string.max_length is None else string.max_length - length
    yield from (ids for count, ids in tokens.plain.items() if count <= high)
    if low == 0 and high > tokens.longest:
        yield from tokens.rest_of_any.legal(language, place)
        return
    for count, rest in tokens.rest.items():
        if count <= high:
            after = language.walk(place, b"a" * count)
            if after is not None:
                yield from rest.legal(language, after)


def _free_string(parser: CharacterLevelParser) -> StringParsingState | None:
    """Return the string that `parser` is in, if it is restricted only by its length."""
    if not isinstance(parser, JsonSchemaParser) or not parser.object_stack:
        return None
    top = parser.object_stack[-1]
    if not isinstance(top, StringParsingState) or top.allowed_strings or top.regex_parser:
        return None
    return top if top.seen_opening_quote and not top.seen_closing_quote else None
