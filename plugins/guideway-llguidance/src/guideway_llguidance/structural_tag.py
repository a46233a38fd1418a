"""Structural tags, in vLLM's first form and in xgrammar's present one, as one Lark grammar.

Free text is a lexeme of its own. A trigger or the end of a tag, which ends free text, is a lazy lexeme: free text up to
and including its first occurrence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guideway.api import InvalidGrammar, UnsupportedGrammar

from guideway_llguidance import json_content
from guideway_llguidance.parts import (
    DIGITS,
    EMPTY,
    FREE,
    SPECIAL,
    TERMINALS,
    Part,
    alternatives,
    either,
    field_of,
    join,
    json_heads,
    malformed,
    named,
    separated,
    sequence,
    shown,
    unsupported,
)

if TYPE_CHECKING:
    from guideway.api import StructuralTag, Vocabulary
    from guideway.json_schema import Schema

MAX_DEPTH = 16
"""Maximum depth of formats inside formats."""

MAX_ALTERNATIVES = 64
"""Maximum number of triggers, or of ends of a tag; each is compared with every other."""

_SERVED = ("any_text", "const_string", "json_schema", "or", "sequence", "tag", "tags_with_separator", "triggered_tags")

# Fields of these formats that change nothing with this value; xgrammar's own classes write them out.
_NEUTRAL: Mapping[str, Mapping[str, Any]] = {
    "any_text": {"excludes": [], "max_tokens": None, "max_chars": None},
    "json_schema": {"style": "json", "any_order": False, "max_whitespace_cnt": None, "excludes": []},
    "triggered_tags": {"excludes": []},
}

_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}


class SpecialTokens:
    """The special tokens of a vocabulary, found in text by their names."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = {name: i for i, name in sorted(vocabulary.special_tokens.items(), reverse=True) if name}
        self.stop_token_ids = vocabulary.stop_token_ids
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})" if longest_first else "(?!)()")

    def split(self, text: str) -> list[str | int]:
        """Split `text` into texts and the ids of the special tokens that it names."""
        return [self._ids[p] if i % 2 else p for i, p in enumerate(self._pattern.split(text)) if p]


@dataclass(frozen=True)
class _Tag:
    """A tag with its content translated; `content` is None for free text up to the end."""

    begin: str
    content: Part | None
    ends: tuple[str, ...]
    path: str


def translate(constraint: StructuralTag, specials: SpecialTokens) -> tuple[str, list[Schema]]:
    """Translate a tag in either form; return a Lark grammar and the schemas in it.

    Raises `InvalidGrammar` for a malformed tag and `UnsupportedGrammar` for one that is not supported, or contains an
    unsupported schema; both name the field.
    """
    translator = _Translator(constraint, specials)
    start = translator.top(constraint.parsed)
    return "\n".join([f"start: {start.lark or EMPTY}", *translator.rules, *TERMINALS]), translator.schemas


class _Translator:
    def __init__(self, constraint: StructuralTag, specials: SpecialTokens) -> None:
        self._constraint = constraint
        self._specials = specials
        self._options = json_content.options(constraint.spacing, inside=True)
        self._depth = 0
        self.rules: list[str] = []
        self.schemas: list[Schema] = []

    def top(self, tag: Any) -> Part:
        if not isinstance(tag, dict):
            malformed("", "must be an object", tag)
        if tag.get("type", "structural_tag") != "structural_tag":
            malformed("type", 'must be "structural_tag"', tag["type"])
        if "structures" in tag or "triggers" in tag:
            return self._old(tag)
        _check_fields(tag, "", {"type", "format"})
        return self.format(_get(tag, "format", "", dict), "format")

    def _old(self, tag: dict[str, Any]) -> Part:
        """Translate the form of vLLM's first version, with `structures` and `triggers`."""
        _check_fields(tag, "", {"type", "structures", "triggers"})
        tags = []
        for i, structure in enumerate(_objects(tag, "structures", "")):
            path = f"structures[{i}]"
            _check_fields(structure, path, {"begin", "schema", "end"})
            begin, end = _get(structure, "begin", path, str), _get(structure, "end", path, str)
            tags.append(_Tag(begin, self._json(structure, "schema", path), (end,), path))
        return self._triggered(tags, _strings(tag, "triggers", ""), "", "structures")

    def format(self, node: dict[str, Any], path: str) -> Part:
        kind = _get(node, "type", path, str)
        if kind not in _SERVED:
            unsupported(path, f"type `{kind}` is not supported; supported are {', '.join(_SERVED)}", kind)
        if self._depth == MAX_DEPTH:
            unsupported(path, f"formats may be nested at most {MAX_DEPTH} levels deep", "depth")
        self._depth += 1
        try:
            return self._format(kind, node, path)
        finally:
            self._depth -= 1

    def _format(self, kind: str, node: dict[str, Any], path: str) -> Part:
        match kind:
            case "any_text":
                _check_fields(node, path, {"type"})
                return FREE
            case "const_string":
                _check_fields(node, path, {"type", "value"})
                return self._literal(_get(node, "value", path, str), f"{path}.value")
            case "json_schema":
                _check_fields(node, path, {"type", "json_schema"})
                return self._json(node, "json_schema", path)
            case "tag":
                return self._in_tag(self._tag(node, path))
            case "tags_with_separator":
                return self._separated(node, path)
            case "triggered_tags":
                return self._modern_triggered(node, path)
        _check_fields(node, path, {"type", "elements"})
        elements = _objects(node, "elements", path)
        parts = [self.format(element, f"{path}.elements[{i}]") for i, element in enumerate(elements)]
        return (sequence if kind == "sequence" else either)(parts, f"{path}.elements")

    def _json(self, node: dict[str, Any], field: str, path: str) -> Part:
        here = join(path, field)
        schema = _get(node, field, path, (dict, bool))
        try:
            json_content.check(self._constraint, schema)
        except InvalidGrammar as error:
            raise InvalidGrammar(f"{named(here)}: {error}", field=field_of(here)) from error
        except UnsupportedGrammar as error:
            raise UnsupportedGrammar(f"{named(here)}: {error}", feature=error.feature, field=field_of(here)) from error
        self.schemas.append(schema)
        heads = json_heads(schema)
        number = not heads.isdisjoint(DIGITS)
        lark = alternatives(
            [json_content.to_lark(json_content.spelled(self._constraint, schema), self._options), "NEVER"]
        )
        return Part(lark, tuple(sorted(heads)), number=number, begins_json=True, ends_json=True, is_json=True)

    def _literal(self, text: str, path: str) -> Part:
        return self._pieces(self._specials.split(text), path)

    def _pieces(self, pieces: Sequence[str | int], path: str) -> Part:
        if not self._specials.stop_token_ids.isdisjoint(p for p in pieces if isinstance(p, int)):
            unsupported(path, "names a stop token, which would end the output", "stop token")
        lark = " ".join(f"<[{p}]>" if isinstance(p, int) else json.dumps(p) for p in pieces)
        head = pieces[0] if pieces else ""
        return Part(lark, (f"{SPECIAL}<[{head}]>" if isinstance(head, int) else head,))

    def _free_until(self, text: str, path: str) -> Part:
        """Return free text up to and including the first `text`."""
        pieces = self._specials.split(text)
        if isinstance(pieces[0], int):  # free text never contains a special token
            return Part(f"TEXT {self._pieces(pieces, path).lark}", ("",))
        if len(pieces) > 1:
            unsupported(path, "free text cannot end with text followed by a special token", "special token")
        return Part(self._rule("until", json.dumps(text), lazy=True), ("",))

    def _rule(self, name: str, body: str, *, lazy: bool = False) -> str:
        name = f"{name}_{len(self.rules)}"
        self.rules.append(f"{name}[lazy]: TEXT {body}" if lazy else f"{name}: {body}")
        return name

    def _tag(self, node: dict[str, Any], path: str) -> _Tag:
        if node.get("type", "tag") != "tag":
            malformed(f"{path}.type", 'must be "tag"', node["type"])
        _check_fields(node, path, {"type", "begin", "content", "end"})
        for field in ("begin", "end"):
            if isinstance(node.get(field), dict):
                unsupported(f"{path}.{field}", "must be text; write the name of a special token", "token")
        end = _get(node, "end", path, (str, list))
        ends = (end,) if isinstance(end, str) else tuple(dict.fromkeys(_strings(node, "end", path)))
        content = self.format(_get(node, "content", path, dict), f"{path}.content")
        if content.free and "" in ends:
            unsupported(f"{path}.end", "must not be empty, because free text needs an end", "any_text")
        return _Tag(_get(node, "begin", path, str), None if content is FREE else content, ends, path)

    def _in_tag(self, tag: _Tag, trigger: str = "") -> Part:
        """Return the tag without its beginning `trigger`."""
        begin = self._literal(tag.begin[len(trigger) :], f"{tag.path}.begin")
        end_path = f"{tag.path}.end"
        end = either([self._literal(end, end_path) for end in tag.ends], end_path)
        if tag.content is None:
            _check_ends(tag.ends, end_path)
            untils = [self._free_until(end, end_path).lark for end in tag.ends]
            return sequence([begin, Part(alternatives(untils), ("",))], tag.path)
        return sequence([begin, tag.content, end], tag.path)

    def _separated(self, node: dict[str, Any], path: str) -> Part:
        _check_fields(node, path, {"type", "tags", "separator", "at_least_one", "stop_after_first"})
        flags = {flag: _get(node, flag, path, bool, False) for flag in ("at_least_one", "stop_after_first")}
        tags_path = f"{path}.tags"
        tags = [self._tag(tag, f"{tags_path}[{i}]") for i, tag in enumerate(_objects(node, "tags", path))]
        item = either([self._in_tag(tag) for tag in _merge(tags, tags_path)], tags_path)
        if not item.lark:
            unsupported(tags_path, "a tag must not be empty", "tags")
        separator = self._literal(_get(node, "separator", path, str), f"{path}.separator")
        item = replace(item, lark=self._rule("tag", item.lark))
        optional, once = not flags["at_least_one"], flags["stop_after_first"]
        return separated(item, separator, tags_path, optional=optional, once=once)

    def _modern_triggered(self, node: dict[str, Any], path: str) -> Part:
        _check_fields(node, path, {"type", "triggers", "tags", "at_least_one", "stop_after_first"})
        flags = {flag: _get(node, flag, path, bool, False) for flag in ("at_least_one", "stop_after_first")}
        nodes = _objects(node, "tags", path)
        tags = [self._tag(tag, f"{path}.tags[{i}]") for i, tag in enumerate(nodes)]
        return self._triggered(tags, _strings(node, "triggers", path), path, f"{path}.tags", **flags)

    def _triggered(
        self,
        tags: list[_Tag],
        triggers: list[str],
        path: str,
        tags_path: str,
        *,
        at_least_one: bool = False,
        stop_after_first: bool = False,
    ) -> Part:
        triggers_path = join(path, "triggers")
        untils, wholes, number = [], [], False
        heads: list[str] = []
        goes_on: list[str] = []
        for trigger, group in self._by_trigger(tags, triggers, triggers_path).items():
            body = either([self._in_tag(tag, trigger) for tag in _merge(group, tags_path)], tags_path)
            if not stop_after_first:
                sequence([body, FREE], tags_path)  # refuses content that free text may not follow
            after = self._rule("after", body.lark or EMPTY)
            until = self._free_until(trigger, triggers_path)
            whole = self._literal(trigger, triggers_path)
            untils.append(f"{until.lark} {after}")
            wholes.append(f"{whole.lark} {after}")
            heads.extend(whole.heads)
            goes_on.extend(body.goes_on)
            number |= body.number
        anywhere, at_once = alternatives(untils), alternatives(wholes)
        if at_least_one and stop_after_first:
            return Part(at_once, tuple(heads), number=number, ends_json=True, goes_on=tuple(goes_on))
        if at_least_one:
            return Part(f"{at_once} {anywhere}* TEXT", tuple(heads), free=True)
        return Part(f"({anywhere} | TEXT)" if stop_after_first else f"{anywhere}* TEXT", ("",), free=True)

    def _by_trigger(self, tags: list[_Tag], triggers: list[str], path: str) -> dict[str, list[_Tag]]:
        """Return the tags of each trigger; each tag has exactly one trigger."""
        groups: dict[str, list[_Tag]] = {trigger: [] for trigger in triggers}
        if not triggers or "" in groups or len(groups) < len(triggers):
            malformed(path, "must be a list of one or more different, non-empty strings", triggers)
        for trigger in triggers:
            longer = next((other for other in triggers if trigger in other and trigger != other), None)
            if longer is not None:
                unsupported(path, f"{trigger!r} is part of {longer!r}, which is ambiguous", "triggers")
            if len(self._specials.split(trigger)) > 1:
                unsupported(path, f"{trigger!r} contains a special token and other text", "triggers")
        for tag in tags:
            trigger = next((trigger for trigger in triggers if tag.begin.startswith(trigger)), "")
            if not trigger:
                malformed(f"{tag.path}.begin", f"must begin with one of the triggers {shown(triggers)}", tag.begin)
            (piece,), first = self._specials.split(trigger), self._specials.split(tag.begin)[0]
            if first != piece and not (isinstance(first, str) and first.startswith(trigger)):
                unsupported(path, f"{trigger!r} ends inside the name of a special token", "triggers")
            groups[trigger].append(tag)
        for trigger, group in groups.items():
            if not group:
                malformed(path, "must contain only triggers with which a tag begins", trigger)
        return groups


def _merge(tags: list[_Tag], path: str) -> list[_Tag]:
    """Return the tags with those merged that differ only in their content."""
    alike: dict[tuple[str, tuple[str, ...]], list[_Tag]] = {}
    for tag in tags:
        alike.setdefault((tag.begin, tag.ends), []).append(tag)
    merged = []
    for group in alike.values():
        contents = [tag.content for tag in group if tag.content is not None]
        if contents and len(contents) < len(group):
            unsupported(path, "two tags begin alike, one with free text and one without", "tags")
        merged.append(replace(group[0], content=either(contents, path) if contents else None))
    return merged


def _check_ends(ends: Sequence[str], path: str) -> None:
    """Refuse ends that could overlap in a text, because free text would have no definite end."""
    for end in ends:
        for other in ends:
            overlaps = any(end.endswith(other[:n]) for n in range(1, min(len(end) + 1, len(other))))
            if overlaps or end in other[:-1]:
                unsupported(path, f"{end!r} and {other!r} may overlap after free text", "any_text")


def _check_fields(node: dict[str, Any], path: str, known: set[str]) -> None:
    neutral = _NEUTRAL.get(str(node.get("type")), {})
    for field, value in node.items():
        if field not in known and not (field in neutral and value == neutral[field]):
            unsupported(join(path, field), "is not served", field)


def _get(node: dict[str, Any], field: str, path: str, types: type | tuple[type, ...], default: Any = None) -> Any:
    value = node.get(field, default)
    if not isinstance(value, types):
        names = " or ".join(_NAMES[t] for t in (types if isinstance(types, tuple) else (types,)))
        malformed(join(path, field), f"must be {names}", value)
    return value


def _objects(node: dict[str, Any], field: str, path: str) -> list[dict[str, Any]]:
    values: list[Any] = _get(node, field, path, list)
    if not values or not all(isinstance(value, dict) for value in values):
        malformed(join(path, field), "must be a list of at least one object", values)
    return values


def _strings(node: dict[str, Any], field: str, path: str) -> list[str]:
    values: list[Any] = _get(node, field, path, list)
    if not values or not all(isinstance(value, str) for value in values):
        malformed(join(path, field), "must be a list of at least one string", values)
    if len(values) > MAX_ALTERNATIVES:
        unsupported(join(path, field), f"{len(values)} are more than {MAX_ALTERNATIVES}", field)
    return values
