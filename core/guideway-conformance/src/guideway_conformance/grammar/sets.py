"""Sets of characters in a regex, put together in every way."""

from __future__ import annotations

import random
import warnings

from guideway.api import Regex

from guideway_conformance.grammar.languages import is_output
from guideway_conformance.grammar.samples import Sample, is_match
from guideway_conformance.grammar.session import legal
from guideway_conformance.grammar.subject import GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

__all__ = ["SETS"]

_RANGES = ("a-z", "c", "m-q", "p-t", "x-z", "A-Z", "0-9", "5", "4-6", "_", " -~", "!-/", "\\n", "\\t", "~")
_CLASSES = ("\\d", "\\s", "\\w", "\\D", "\\S", "\\W")
_WIDE = ("é", "à-ÿ", "~-\x80", "\x80-\u0100", "\u07f0-\u0810", "\u0800", "中-乞", "\ufffd-\U00010001", "\U0001f600")
NUMBER = 20
"""The sets of each make, and as many negated."""


def _sets() -> tuple[str, ...]:
    """Sets whose parts stand in one another, overlap, touch, are there twice or come in any order."""
    found = ["[a-zc]", "[ca-z]", "[a-zm-q]", "[m-qp-t]", "[a-za-z]", "[0-95]", "[\\s\\n]", "[\\n\\s]", "[\\w\\d]"]
    found += ["[\\d5]", "[\\wa-z_]", "[ -~\\s]", "[a-m-q]", "[\\d\\D]", "[à-ÿé]", "[\\s\\S]"]
    rng = random.Random(0)
    for parts in (_RANGES, (*_RANGES, *_CLASSES), (*_RANGES, *_WIDE)):
        found += [f"[{''.join(rng.sample(parts, rng.randrange(1, 5)))}]" for _ in range(NUMBER)]
    return tuple(text for each in dict.fromkeys(found) for text in (each, f"[^{each[1:]}"))


SETS = _sets()
_ASCII = "".join(map(chr, (*range(9, 14), *range(32, 128))))
"""The characters on which engines agree what a class is; some call the separators of files white space too."""
_PAST_ASCII = "\x80\xe0\xe8é\xff\u0100\u07ef\u07f0\u07ff\u0800\u0810\u0811中乞乏\uffff\U00010000\U00010001\U00010002😀"


@check("grammar", trait="kind:regex", seconds=60)
def a_set_has_its_characters(subject: GrammarSubject) -> None:
    """A set of a regex has the characters that Python's has, and its complement all others, however many parts it is
    made of: ranges and classes that stand in one another, overlap, touch or come twice, in any order."""
    strategy, vocabulary = subject.build(), standard()
    stop = max(vocabulary.stop_token_ids)
    single = {token: i for i, token in enumerate(vocabulary.tokens) if len(token) == 1}
    for pattern in SETS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not any(is_match(pattern, char) for char in _ASCII + _PAST_ASCII):
                continue  # it has none
        case = compiled_case(strategy, vocabulary, Sample(Regex(pattern)))
        if case is None or case.support.unenforced:
            continue
        found = set(legal(case.session()))
        has_class = any(name in pattern for name in _CLASSES)  # which may have other letters past ASCII, or none
        for char in _ASCII + ("" if has_class else _PAST_ASCII):
            if char.isascii():
                allowed = single[char.encode()] in found
            else:
                allowed = is_output(case.session().matcher, ids_of(vocabulary, char.encode()), stop)
            wanted = is_match(pattern, char)
            expect(allowed == wanted, f"regex {pattern}: {char!r} is {'accepted' if allowed else 'refused'}")
