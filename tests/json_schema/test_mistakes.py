"""Errors in regular expressions in every dialect."""

from __future__ import annotations

import pytest
from guideway.api import InvalidGrammar
from guideway.json_schema import check_regex, check_schema


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("a(b", "unclosed group\n    a(b\n     ^"),
        ("((b)", "unclosed group\n    ((b)\n    ^"),
        ("ä)b", "a `)` that closes nothing\n    ä)b\n     ^"),
        ("a[b(", "unclosed character class\n    a[b(\n     ^"),
        (r"a[b\]", "unclosed character class\n    a[b\\]\n     ^"),
        ("[a-cz-x]", "the range ends before it begins\n    [a-cz-x]\n        ^"),
        ("a{3,1}", "the count ends before it begins\n    a{3,1}\n     ^"),
        ("*a", "a `*` with nothing to repeat\n    *a\n    ^"),
        ("a|+b", "a `+` with nothing to repeat\n    a|+b\n      ^"),
        ("a(b)|?", "a `?` with nothing to repeat\n    a(b)|?\n         ^"),
        ("(*)", "a `*` with nothing to repeat\n    (*)\n     ^"),
        ("(?:(?<n>?a))", "a `?` with nothing to repeat\n    (?:(?<n>?a))\n            ^"),
        ("a\nb)", "a `)` that closes nothing\n    b)\n     ^"),
        ("x" * 100 + ")" + "y" * 50, "nothing\n    ..." + "x" * 40 + ")" + "y" * 19 + "...\n    " + " " * 43 + "^"),
    ],
)
def test_a_mistake_is_shown_where_it_is(pattern: str, said: str) -> None:
    with pytest.raises(InvalidGrammar) as refused:
        check_regex(pattern)
    assert str(refused.value).startswith("the pattern is no regular expression: ")
    assert str(refused.value).endswith(said)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\(", r"[(]", r"[)]", r"[\]]", r"(?:a|b)", r"(?P<n>a)", r"(?<n>a)", r"a{1,3}", r"a{3}", r"\{3,1}", r"[a-]"),
        *(
            "[--a]",
            r"[\w-a]",
            r"[\x2b-9]",
            r"[\u002b-9]",
            "[]a]",
            "[^]a]",
            "[^](]",
            "[[a](]",
            "[a[b](]",
            "[[:alpha:](]",
            "[a-z&&[^(]]",
            "[z--a]",
        ),
        *(
            r"\Q(\E",
            "(?#()",
            "(?x)a # (",
            "(?ix) # )",
            r"\x{41}",
            r"\p{L}",
            "a**",
            r"\*a",
            r"a\|*",
            "[(|*]",
            "(*UTF8)a",
            "^*",
            "()*",
            "(?i)*a",
            "(*atomic:a)",
            "(?=a)?b",
            "[\U0001f600-\uffff]",
            "a\\",
            "{",
        ),
    ],
)
def test_what_some_dialect_takes_is_left_to_it(pattern: str) -> None:
    check_regex(pattern)


def test_a_schema_with_one_is_refused_with_its_pointer() -> None:
    with pytest.raises(InvalidGrammar) as refused:
        check_schema({"properties": {"a/b": {"type": "string", "pattern": "^(ab"}}})
    assert str(refused.value) == (
        "#/properties/a~1b/pattern: `pattern` is no regular expression: unclosed group\n    ^(ab\n     ^"
    )
    assert refused.value.field == "constraint.schema"


def test_a_hostile_one_costs_no_more_than_its_length() -> None:
    for pattern in ("(" * 200_000 + ")" * 200_000, "[a-b" * 100_000, "{1,2" * 100_000, "[" + "a-" * 100_000 + "]"):
        check_regex(pattern)
