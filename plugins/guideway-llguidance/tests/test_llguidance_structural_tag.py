"""Structural tags: the same outputs as xgrammar, byte by byte; malformed tags; refused tags."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from guideway.api import (
    GrammarStrategy,
    InvalidGrammar,
    JsonSchema,
    Matcher,
    StructuralTag,
    UnsupportedGrammar,
    Vocabulary,
    Whitespace,
)
from guideway_xgrammar.strategy import Strategy as Xgrammar

from tests.support.stages import one_in

Legal = Callable[[Matcher, Vocabulary], set[int]]
STOP = 0
BOOLEAN = {"type": "boolean"}
NUMBER = {"type": "integer", "minimum": 1, "maximum": 99}
CALL = {
    "type": "object",
    "properties": {"n": {"enum": ["f", "g"]}, "a": {"type": "array", "items": NUMBER}},
    "required": ["n", "a"],
    "additionalProperties": False,
}
# tokens across the edges of tags, triggers and JSON; every ASCII byte; a character of two bytes
TEXTS = [
    *(bytes([byte]) for byte in range(128)),
    *(b"\xc3", b"\xa9", "é".encode(), "é<".encode()),
    *(b"x<f", b"<f", b"<f=", b"f=a>", b"<f=a>t", b"a>true", b"ue</", b"</f>", b"</f>y", b"</f><f", b">{", b'{"n":"f"'),
    *(b'"g","a":[', b"]}<", b"]}\n", b"]}}", b"<<", b"[T", b"12", b"<t>", b"</t>", b" </t", b"abc"),
]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    specials = {0: "</s>", 1: "<|tool|>", 2: "<|end|>", 3: "<|tool|>!>"}
    return Vocabulary([b"", b"", b"", b"", *TEXTS], frozenset({STOP}), specials)


@pytest.fixture(scope="module")
def strategy(make: Callable[..., GrammarStrategy], vocabulary: Vocabulary) -> GrammarStrategy:
    return make(vocabulary, whitespace="any")


@pytest.fixture(scope="module")
def xgrammar(vocabulary: Vocabulary) -> GrammarStrategy:
    return Xgrammar(vocabulary, {})


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": value}


def text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, end: Any, content: Any = None) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content or schema(BOOLEAN), "end": end}


def triggered(triggers: list[str], *tags: Mapping[str, Any], **flags: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": triggers, "tags": list(tags), **flags}


def separated(separator: str, *tags: Mapping[str, Any], **flags: Any) -> dict[str, Any]:
    return {"type": "tags_with_separator", "separator": separator, "tags": list(tags), **flags}


def sequence(*elements: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def either(*elements: Any) -> dict[str, Any]:
    return {"type": "or", "elements": list(elements)}


def modern(outer: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": outer}


def old(triggers: list[str], *structures: tuple[str, Any, str]) -> dict[str, Any]:
    return {
        "structures": [{"begin": begin, "schema": inner, "end": end} for begin, inner, end in structures],
        "triggers": triggers,
    }


ANY = {"type": "any_text"}
CALLS = '<f=a>true</f> <f=b>{"n":"f","a":[1,23]}\n</f>'
SAME: list[tuple[dict[str, Any], list[str]]] = [
    (
        old(["<f"], ("<f=a>", BOOLEAN, "</f>"), ("<f=b>", CALL, "\n</f>"), ("<f=ab>", BOOLEAN, "</f>")),
        [
            "",
            "free",
            f"1 < 2 <<f=ab>false</f><f=a>true</f> <g {CALLS} <",
            "<f",
            "<f=c>",
            "<f=a>true </f>",
            "é<f=a>true",
        ],
    ),
    (
        old(["<f=a>", "<g"], ("<f=a>", BOOLEAN, ""), ("<g", CALL, "}")),
        ["<f=a>truetrue<f=a>falsex", '<g{"n":"g","a":[]}}<g', '<g{"n":"g","a":[]}<', "<f=b>"],
    ),
    (
        old(["<t>"], *(("<t>", {"properties": {"n": {"const": n}}, **CALL}, "</t>") for n in "xy")),
        ['<t>{"n":"f","a":[1,2]}</t>', '<t>{"n":"x"', '<t>{"n":"g","a":[-7]}</t>z<t>'],
    ),
    (old(["<t>"], ("<t>", NUMBER, "</t>"), ("<t>", {"type": "null"}, "</t>")), ["<t>12</t><t>null</t>"]),
    (modern(triggered(["<f"], tag("<f>", "</f>"), at_least_one=True)), ["", "x", "<f>true</f>x<f>false</f>", "<f>1"]),
    (modern(triggered(["<f"], tag("<f>", "</f>"), stop_after_first=True)), ["", "x<f>true</f>", "<f>true</f>x", "<g"]),
    (
        modern(triggered(["<f", "["], tag("<f>", "</f>"), tag("[x", ""), at_least_one=True, stop_after_first=True)),
        ["", "x", "<f>true</f>", "[xtrue", "[xfalse<f"],
    ),
    (modern(triggered(["<f"], tag("<f>", ["</f>", ";"]))), ["<f>true;<f>false</f>x", "<f>true<"]),
    (modern(triggered(["<f"], tag("<f>", "</f>", ANY))), ["<f>any < </f </f>x<f>", "<f></f>", "<f>é</f"]),
    (modern(triggered(["<f"], tag("<f>", ["xy", "y"], ANY))), ["<f>abxy<f>aby", "<f>x<f>"]),
    (
        modern(triggered(["<f"], tag("<f>", "", text("abc")), tag("<f=", "d", either(text("x"), schema(CALL))))),
        ["<f=xdz<f>abc"],
    ),
    (modern(ANY), ["", "anything é\n\x00"]),
    (modern(text("abc")), ["abc", "abd"]),
    (modern(text("")), [""]),
    (modern(schema(CALL)), ['{"n":"f","a":[1, 10]}', "{}"]),
    (
        modern(tag("<t>", "</t>", sequence(text("ab"), schema(BOOLEAN), text(" "), schema({"type": "null"})))),
        ["<t>abtrue null</t>"],
    ),
    (modern(tag("", "", text(""))), [""]),
    (
        modern(either(text("ab"), text("b"), schema({"type": "array", "items": BOOLEAN}))),
        ["ab", "b", "[true,false]", "a"],
    ),
    (modern(either(sequence(schema(CALL), text("x")), schema({"type": "array", "items": BOOLEAN}))), ["[true]", " ["]),
    (modern(either(schema(NUMBER), schema({"const": "12"}), schema(CALL))), ["12", '"12"', '{"n":"f"']),
    (
        modern(sequence(tag("<t>", "</t>", ANY), triggered(["<f"], tag("<f>", "</f>")))),
        ["<t>let < </t > me<f></t>x<f>true</f>.", "x", "<t></t>", "<t></t"],
    ),
    (modern(sequence(text("a"), schema(NUMBER), text("b"), ANY)), ["a12bc", "a-b", "a1b"]),
    (
        modern(separated("\n", tag("<f>", "</f>"), tag("<g>", "</g>", schema(CALL)))),
        ["", "<f>true</f>", '<f>true</f>\n<g>{"n":"f","a":[1]}</g>\n<f>false</f>', "\n", "<f>true</f>\n"],
    ),
    (
        modern(separated("", tag("<f>", ">"), tag("<g>", ";", ANY), at_least_one=True)),
        ["", "<f>true><f>false><g>x;<f", "<g>;;", "<f>true>x"],
    ),
    (modern(separated(",", tag("<f>", ""), stop_after_first=True)), ["", "<f>true", "<f>true,"]),
    (
        modern(separated(",", tag("<f>", ""), tag("<g", "x"), at_least_one=True, stop_after_first=True)),
        ["", "<f>true", "<gtruex", "<f>true,"],
    ),
    (
        modern(sequence(text("[["), separated("", tag("[f", "]"), at_least_one=True), text("]]"))),
        ["[[[ftrue]]]", "[[[ftrue][ffalse]]]", "[[]]"],
    ),
    (modern(tag("<a>", "</a>", separated(" ", tag("<f>", "</f>")))), ["<a></a>", "<a><f>true</f> <f>"]),
    (
        modern(triggered(["<a"], tag("<a>", "</a>", separated("", tag("<f>", "</f>"), at_least_one=True)))),
        ["x<a><f>true</f><f>true</f></a> <a>", "<a></a>"],
    ),
]


@pytest.mark.parametrize(("definition", "outputs"), one_in(4, SAME), ids=lambda v: str(v)[:60])
def test_masks_are_xgrammars(
    strategy: GrammarStrategy,
    xgrammar: GrammarStrategy,
    vocabulary: Vocabulary,
    legal: Legal,
    definition: dict[str, Any],
    outputs: list[str],
) -> None:
    """Compare along each output and along random ones. They disagree about bytes that are not characters."""
    plain = {i for i, token in enumerate(vocabulary.tokens) if token.isascii()}
    ours, theirs = (s.compile(StructuralTag(definition, whitespace="any")) for s in (strategy, xgrammar))
    rng = random.Random(str(definition))
    for output in [*outputs, *[None] * 20]:
        mine, other = ours.matcher(frozenset({STOP})), theirs.matcher(frozenset({STOP}))
        todo = [TEXTS.index(bytes([byte])) + 4 if byte < 128 else None for byte in (output or "").encode()]
        written = b""
        for step in range(len(todo) + 1 if output is not None else 60):
            expected = legal(other, vocabulary)
            inside = written[-1:] == b"\xc3"
            if not inside:
                assert legal(mine, vocabulary) & plain == expected & plain, written
                assert mine.is_accepting() == other.is_accepting() == (STOP in expected), written
            if output is None:
                # prefer the letters of tags and JSON
                some = [t for t in expected & plain if vocabulary.tokens[t]]
                token_id = rng.choice(sorted(some) or [STOP])
                if rng.random() < 0.7:
                    token_id = max(some, key=lambda t: (rng.random() * len(vocabulary.tokens[t]), t), default=STOP)
            elif step < len(todo):
                byte = output.encode()[step : step + 1]
                token_id = vocabulary.tokens.index(byte)
            else:
                break
            accepted = mine.accept([token_id])
            assert accepted == other.accept([token_id]), written
            if not accepted or token_id == STOP:
                break
            written += vocabulary.tokens[token_id]
        assert mine.accept([STOP]) == other.accept([STOP])


def some_text(rng: random.Random, least: int, most: int) -> str:
    return "".join(rng.choice("ab<>/ ") for _ in range(rng.randint(least, most)))


def some_format(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """Return a random format, unlike any that a user would write."""
    kind = rng.choice(
        ["any", "text", "schema", "schema", "tag", "triggered", "triggered", "or", "sequence", "separated"]
    )
    if kind == "any":
        return ANY
    if kind == "text":
        return text(some_text(rng, 0, 3))
    if kind == "schema" or depth == 3:
        return schema(rng.choice([BOOLEAN, NUMBER, {"enum": ["a", "ab"]}, {"type": "array", "items": BOOLEAN}]))
    if kind == "tag":
        return some_tag(rng, some_text(rng, 0, 2), depth)
    if kind in ("or", "sequence"):
        return {"type": kind, "elements": [some_format(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
    if kind == "separated":
        several = [some_tag(rng, some_text(rng, 0, 2), depth) for _ in range(rng.randint(1, 2))]
        flags = {"at_least_one": rng.random() < 0.5, "stop_after_first": rng.random() < 0.3}
        return separated(some_text(rng, 0, 1), *several, **flags)
    triggers = sorted({some_text(rng, 1, 2) for _ in range(2)})
    tags = [some_tag(rng, trigger + some_text(rng, 0, 2), depth) for trigger in triggers for _ in range(2)]
    if rng.random() < 0.5:
        tags[1] |= {"begin": tags[0]["begin"], "end": tags[0]["end"]}
    return triggered(triggers, *tags, at_least_one=rng.random() < 0.3, stop_after_first=rng.random() < 0.3)


def some_tag(rng: random.Random, begin: str, depth: int) -> dict[str, Any]:
    ends: Any = some_text(rng, 0, 3) if rng.random() < 0.8 else [some_text(rng, 1, 2), some_text(rng, 1, 2)]
    return tag(begin, ends, some_format(rng, depth + 1))


@pytest.mark.slow
def test_what_is_served_has_xgrammars_masks(
    strategy: GrammarStrategy, xgrammar: GrammarStrategy, vocabulary: Vocabulary, legal: Legal
) -> None:
    """Definitions and outputs are random; most definitions are refused, which does not matter here."""
    plain = {i for i, token in enumerate(vocabulary.tokens) if token.isascii()}
    likely = {i for i in plain if set(vocabulary.tokens[i]) <= set(b'ab<>/ "[]truefals1')} - {STOP}
    served = 0
    for seed in range(300):
        rng = random.Random(seed)
        definition = StructuralTag(modern(some_format(rng)), whitespace="any")
        if strategy.supports(definition).refused or xgrammar.supports(definition).refused:
            continue
        try:
            ours, theirs = strategy.compile(definition), xgrammar.compile(definition)
        except (InvalidGrammar, UnsupportedGrammar):
            continue
        served += 1
        for _ in range(4):
            mine, other, written = ours.matcher(frozenset({STOP})), theirs.matcher(frozenset({STOP})), b""
            for _ in range(25):
                expected = legal(other, vocabulary) & plain
                assert legal(mine, vocabulary) & plain == expected, (seed, definition, written)
                token_id = rng.choice(sorted(expected & likely) or sorted(expected))
                assert mine.accept([token_id]) == other.accept([token_id]) == 1
                if token_id == STOP:
                    break
                written += vocabulary.tokens[token_id]
    assert served > 100


def ids(vocabulary: Vocabulary, output: str) -> list[int]:
    """Return the ids of the bytes of `output`, and of stop and special tokens, which it names in braces: ``{</s>}``."""
    token_ids: list[int] = []
    names = {name: token_id for token_id, name in vocabulary.special_tokens.items()}
    for i, piece in enumerate(output.replace("{<", "\0<").replace(">}", ">\0").split("\0")):
        token_ids += [names[piece]] if i % 2 else [vocabulary.tokens.index(bytes([byte])) for byte in piece.encode()]
    return token_ids


TOOL = old(["<|tool|>", "<f"], ("<|tool|>f ", BOOLEAN, "<|end|>"), ("<f>", BOOLEAN, "</f>"))
THINK = modern(sequence(tag("<|tool|>", "<|end|>", ANY), triggered(["<f"], tag("<f>", "</f>"))))
EITHER = modern(either(text("<|tool|>"), text("<|end|>x"), tag("<", ">", ANY)))


@pytest.mark.parametrize(
    ("definition", "output", "accepted"),
    [
        (TOOL, "hi {<|tool|>}f true{<|end|>} ho <f>true</f>{<|tool|>}f false{<|end|>}{</s>}", True),
        (TOOL, "its name <|tool|> is text like any other{</s>}", True),
        (TOOL, "{<|tool|>}f true<|end|>", False),
        (TOOL, "{<|tool|>}<f>", False),
        (TOOL, "<f{<|tool|>}", False),
        (TOOL, "{<|end|>}", False),
        (TOOL, "{<|tool|>}f true{</s>}", False),
        (THINK, "{<|tool|>}a <|end|> <f> b{<|end|>}c<f>true</f>{</s>}", True),
        (THINK, "{<|tool|>}a{<|tool|>}", False),
        (EITHER, "{<|tool|>}{</s>}", True),
        (EITHER, "{<|end|>}x{</s>}", True),
        (EITHER, "<|tool|>{</s>}", True),
        (modern(text("a<|tool|>!>b")), "a{<|tool|>!>}b{</s>}", True),
        (modern(text("a<|tool|>!>b")), "a{<|tool|>}!>b{</s>}", False),
        (modern(text("a<|tool|>!>b")), "a<|tool|>!>b{</s>}", False),
        (modern(ANY), "a{<|tool|>}", False),
    ],
)
def test_special_tokens_go_by_their_names(
    strategy: GrammarStrategy, vocabulary: Vocabulary, definition: dict[str, Any], output: str, accepted: bool
) -> None:
    matcher = strategy.compile(StructuralTag(definition)).matcher(frozenset({STOP}))
    token_ids = ids(vocabulary, output)
    assert (matcher.accept(token_ids) == len(token_ids)) == accepted


@pytest.mark.parametrize("output", ["a<f=a>true</f>b{</s>}", "<<f=b>false</f>{</s>}"])
def test_rollback_over_a_trigger(strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal, output: str) -> None:
    definition = old(["<f"], ("<f=a>", BOOLEAN, "</f>"), ("<f=b>", BOOLEAN, "</f>"))
    matcher = strategy.compile(StructuralTag(definition)).matcher(frozenset({STOP}))
    token_ids, masks = ids(vocabulary, output), []
    for token_id in token_ids:
        masks.append(legal(matcher, vocabulary))
        assert matcher.accept([token_id]) == 1
    # stop is legal only in free text; after the last byte of a tag comes free text
    inside = "<f" + output.partition("<f")[2].partition("</f>")[0] + "</f"
    start = output.index("<f") + 2
    stops = [STOP in mask for mask in masks]
    assert stops == [not start <= i < start - 2 + len(inside) + 1 for i in range(len(masks))]
    for start in range(len(token_ids)):
        matcher.rollback(len(token_ids) - start)
        assert legal(matcher, vocabulary) == masks[start]
        assert matcher.accept(token_ids[start:]) == len(token_ids) - start


def test_free_text_is_characters(strategy: GrammarStrategy, vocabulary: Vocabulary, legal: Legal) -> None:
    matcher = strategy.compile(StructuralTag(modern(ANY))).matcher(frozenset({STOP}))
    half = vocabulary.tokens.index(b"\xc3")
    rest = vocabulary.tokens.index(b"\xa9")
    assert legal(matcher, vocabulary) == set(range(len(vocabulary))) - {1, 2, 3, rest}
    matcher.accept([half])
    assert legal(matcher, vocabulary) == {rest} and not matcher.is_accepting()


GOOD = old(["<f"], ("<f>", BOOLEAN, "</f>"))
STRUCTURE = GOOD["structures"][0]


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        ([], "constraint.tag"),
        (1, "constraint.tag"),
        ({}, "constraint.tag.format"),
        ({**modern(ANY), "type": "x"}, "constraint.tag.type"),
        (modern(None), "constraint.tag.format"),
        (modern({}), "constraint.tag.format.type"),
        (modern({"type": 1}), "constraint.tag.format.type"),
        (modern({"type": "const_string"}), "constraint.tag.format.value"),
        (modern({"type": "const_string", "value": 1}), "constraint.tag.format.value"),
        (modern({"type": "sequence"}), "constraint.tag.format.elements"),
        (modern(sequence()), "constraint.tag.format.elements"),
        (modern(either()), "constraint.tag.format.elements"),
        (modern(sequence(ANY, 1)), "constraint.tag.format.elements"),
        (modern(sequence(text("a"), schema("{}"))), "constraint.tag.format.elements[1].json_schema"),
        (modern(schema({"type": "strin"})), "constraint.tag.format.json_schema"),
        (modern(schema(False)), "constraint.tag.format.json_schema"),
        (modern({"type": "tag", "content": text("a"), "end": ""}), "constraint.tag.format.begin"),
        (modern({"type": "tag", "begin": "", "end": ""}), "constraint.tag.format.content"),
        (modern({"type": "tag", "begin": "", "content": ANY}), "constraint.tag.format.end"),
        (modern(tag("a", [])), "constraint.tag.format.end"),
        (modern(tag("a", [1])), "constraint.tag.format.end"),
        (modern(triggered(["<"])), "constraint.tag.format.tags"),
        (modern(triggered([], tag("<", ""))), "constraint.tag.format.triggers"),
        (modern(triggered(["<"], tag("<", ""), at_least_one=1)), "constraint.tag.format.at_least_one"),
        (modern(triggered(["<"], text("<"))), "constraint.tag.format.tags[0].type"),
        (modern(triggered(["<"], tag("<", ""), tag("(", ""))), "constraint.tag.format.tags[1].begin"),
        ({"structures": GOOD["structures"]}, "constraint.tag.triggers"),
        ({"triggers": ["<"]}, "constraint.tag.structures"),
        ({**GOOD, "structures": 1}, "constraint.tag.structures"),
        ({**GOOD, "structures": []}, "constraint.tag.structures"),
        ({**GOOD, "structures": ["<f>"]}, "constraint.tag.structures"),
        ({**GOOD, "triggers": "<f"}, "constraint.tag.triggers"),
        ({**GOOD, "triggers": ["<f", 1]}, "constraint.tag.triggers"),
        ({**GOOD, "triggers": [""]}, "constraint.tag.triggers"),
        ({**GOOD, "triggers": ["<f", "<f"]}, "constraint.tag.triggers"),
        ({**GOOD, "triggers": ["<f", "[f"]}, "constraint.tag.triggers"),
        ({**GOOD, "triggers": ["<g"]}, "constraint.tag.structures[0].begin"),
        *(
            (
                {**GOOD, "structures": [{k: v for k, v in STRUCTURE.items() if k != field}]},
                f"constraint.tag.structures[0].{field}",
            )
            for field in ("begin", "schema", "end")
        ),
        ({**GOOD, "structures": [{**STRUCTURE, "schema": {"minLength": -1}}]}, "constraint.tag.structures[0].schema"),
    ],
    ids=lambda v: str(v)[:60],
)
def test_malformed_tags_are_invalid(strategy: GrammarStrategy, definition: Any, field: str) -> None:
    constraint = StructuralTag(definition)
    with pytest.raises(InvalidGrammar) as caught:
        strategy.compile(constraint)
    assert caught.value.field == field
    assert field.removeprefix("constraint.tag").strip(".") in str(caught.value)
    assert strategy.supports(constraint).reason == str(caught.value)


DEEP: dict[str, Any] = text("x")
for _ in range(20):
    DEEP = sequence(DEEP)


@pytest.mark.parametrize(
    ("definition", "feature"),
    [
        (modern({"type": "regex", "pattern": "a"}), "regex"),
        (modern({"type": "no-such"}), "no-such"),
        (modern({"type": "token", "token": 1}), "token"),
        (modern(tag({"type": "token", "token": 1}, "x")), "token"),  # type: ignore[arg-type]
        ({**GOOD, "at_least_one": True}, "at_least_one"),
        ({**GOOD, "format": ANY}, "format"),
        (modern({**ANY, "max_tokens": 3}), "max_tokens"),
        (modern({**ANY, "excludes": ["a"]}), "excludes"),
        (modern({**schema(True), "style": "qwen_xml"}), "style"),
        (modern({**schema(True), "any_order": True}), "any_order"),
        (modern({**text("a"), "x": None}), "x"),
        (modern(triggered(["<"], tag("<", ">"), excludes=["a"])), "excludes"),
        (modern(DEEP), "depth"),
        # ambiguous
        (modern(sequence(ANY, text("a"))), "any_text"),
        (modern(tag("<", "", ANY)), "any_text"),
        (modern(tag("<", ["", "x"], ANY)), "any_text"),
        (modern(tag("<", ">", sequence(text("a"), ANY))), "any_text"),
        (modern(tag("<", ">", triggered(["<"], tag("<", ">")))), "any_text"),
        (modern(sequence(schema({"type": "integer"}), text("1"))), "json_schema"),
        (modern(sequence(schema({"enum": ["a", 1]}), ANY)), "json_schema"),
        (modern(sequence(schema(BOOLEAN), schema(CALL))), "json_schema"),
        (modern(sequence(tag("", "", schema(BOOLEAN)), either(text("a"), schema(CALL)))), "json_schema"),
        (modern(tag("<", "/>/", ANY)), "any_text"),
        (modern(tag("<", ["ab", "ba"], ANY)), "any_text"),
        (modern(tag("<", ["b", "abc"], ANY)), "any_text"),
        (modern(tag("<", [str(i) for i in range(65)])), "end"),
        (modern(triggered(["<"], tag("<", "", schema({"type": "number"})))), "json_schema"),
        (modern(triggered(["<"], tag("<", "", schema(True)))), "json_schema"),
        (modern(either(text("a"), text("ab"))), "or"),
        (modern(either(text("a"), ANY)), "or"),
        (modern(either(text(""), text("a"))), "or"),
        (modern(either(schema({"type": "object"}), text("{"))), "or"),
        (modern(either(schema(True), tag("", "x"))), "or"),
        (modern(tag("a", ["x", "xy"])), "or"),
        (old(["<f"], ("<f>", BOOLEAN, "</f>"), ("<f>", BOOLEAN, "</g>")), "or"),
        (old(["<f"], ("<f", BOOLEAN, "</f>"), ("<ft", BOOLEAN, "</f>")), "or"),
        (modern(triggered(["<"], tag("<", ">"), tag("<", ">", ANY))), "tags"),
        (old(["f", "<f"], ("<f>", BOOLEAN, "</f>"), ("f", BOOLEAN, "</f>")), "triggers"),
        (old([f"<{i}>" for i in range(65)], ("<1>", BOOLEAN, "")), "triggers"),
        (modern(sequence(separated(",", tag("<", ">")), text(",x"))), "tags_with_separator"),
        (modern(sequence(separated("", tag("<", ">"), at_least_one=True), text("<x"))), "tags_with_separator"),
        (modern(sequence(separated("", tag("<", ">"), stop_after_first=True), text("<x"))), "tags_with_separator"),
        (modern(separated("", tag("<", "", schema(NUMBER)), tag("1", ">"))), "json_schema"),
        (modern(separated("", tag("", "", schema(BOOLEAN)))), "json_schema"),
        (modern(separated(",", tag("<", ">"), tag("<", ";"))), "or"),
        (modern(separated(",", tag("", "", text("")))), "tags"),
        (modern({**separated(",", tag("<", ">")), "excludes": ["a"]}), "excludes"),
        # special tokens
        (old(["<|to"], ("<|tool|>", BOOLEAN, "")), "triggers"),
        (old(["<|tool|>x"], ("<|tool|>x", BOOLEAN, "")), "triggers"),
        (old(["x<|to"], ("x<|tool|>", BOOLEAN, "")), "triggers"),
        (modern(tag("<", "x<|end|>", ANY)), "special token"),
        (old(["<f"], ("<f>", BOOLEAN, "</s>")), "stop token"),
        (old(["</s>"], ("</s>", BOOLEAN, "")), "stop token"),
        (modern(text("</s>")), "stop token"),
    ],
    ids=lambda v: str(v)[:60],
)
def test_what_would_be_another_language_is_unsupported(
    strategy: GrammarStrategy, definition: dict[str, Any], feature: str
) -> None:
    constraint = StructuralTag(definition)
    with pytest.raises(UnsupportedGrammar) as caught:
        strategy.compile(constraint)
    assert caught.value.feature == f"structural_tag:{feature}"
    assert strategy.supports(constraint).reason == str(caught.value)


def test_what_xgrammars_classes_write_out_is_nothing_to_refuse(strategy: GrammarStrategy) -> None:
    xgr = pytest.importorskip("xgrammar.structural_tag")
    inner = xgr.TagFormat(begin="<f>", content=xgr.JSONSchemaFormat(json_schema=BOOLEAN), end="</f>")
    flags = {"at_least_one": False, "stop_after_first": False}
    outer = xgr.OrFormat(
        elements=[
            xgr.SequenceFormat(elements=[xgr.ConstStringFormat(value="a"), xgr.AnyTextFormat()]),
            xgr.SequenceFormat(
                elements=[
                    xgr.ConstStringFormat(value="b"),
                    xgr.TriggeredTagsFormat(triggers=["<"], tags=[inner], **flags),
                ]
            ),
            xgr.TagsWithSeparatorFormat(tags=[inner], separator="", at_least_one=True),
        ]
    )
    written = xgr.StructuralTag(format=outer).model_dump()
    assert not strategy.supports(StructuralTag(written)).refused
    strategy.compile(StructuralTag(written))


def test_schemas_inside_are_judged_like_schemas(strategy: GrammarStrategy) -> None:
    def inside(*schemas: Any) -> StructuralTag:
        return StructuralTag(old(["<f"], *((f"<f{i}>", inner, "</f>") for i, inner in enumerate(schemas))))

    bounded = {"type": "string", "minLength": 1}
    listed = {"type": "array", "items": BOOLEAN}
    found = strategy.supports(inside(bounded, listed))
    assert not found.refused and not found.unenforced
    assert found.enforced == {"structural_tag"}.union(
        *(strategy.supports(JsonSchema(inner)).enforced for inner in (bounded, listed))
    )
    assert strategy.supports(inside({"type": "object"})).unenforced == {"names"}
    # unsupported by llguidance, options for it, and not a schema
    for inner, named in (
        ({**listed, "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "x-guidance": {"lenient": True}}, "x-guidance"),
        ({"properties": {"a": {"x-guidance": {}}}}, "x-guidance"),
    ):
        assert named in str(strategy.supports(inside(bounded, inner)).reason)
        with pytest.raises(UnsupportedGrammar, match=named):
            strategy.compile(inside(bounded, inner))
    with pytest.raises(InvalidGrammar, match=r"structures\[1\].schema.*#/type"):
        strategy.compile(inside(bounded, {"type": "strin"}))
    with pytest.raises(UnsupportedGrammar, match="Unsatisfiable"):
        strategy.compile(inside(bounded, {"allOf": [{"type": "string"}, {"type": "null"}]}))


PAD = "\n" + 20 * " \t"


@pytest.mark.parametrize(
    ("whitespace", "legal_too"),
    [
        ("any", ["", " ", "\r\n", PAD, "\t", "  ", PAD + " "]),
        ("bounded", ["", " ", "\r\n", PAD]),
        ("compact", [""]),
        ("spaced", [" "]),
    ],
)
def test_whitespace_inside(
    make: Callable[..., GrammarStrategy], vocabulary: Vocabulary, whitespace: Whitespace, legal_too: list[str]
) -> None:
    compiled = make(vocabulary, whitespace=whitespace).compile(StructuralTag(old(["<f"], ("<f>", CALL, "</f>"))))
    for space in ("", " ", "\r\n", PAD, "\t", "  ", PAD + " "):
        token_ids = ids(vocabulary, f'<f>{{"n":{space}"f",{space}"a":{space}[1,{space}2]}}</f>x')
        accepted = compiled.matcher(frozenset({STOP})).accept(token_ids) == len(token_ids)
        assert accepted == (space in legal_too)
