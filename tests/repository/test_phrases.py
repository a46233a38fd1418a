"""Few texts have a private phrase: docs/style.md lists the phrases, and shows how to say the same plainly."""

from __future__ import annotations

import pytest

from tests.repository.phrases import PRIVATE, lines_of, shares, texts_of

MOST_OF_CODE = 0.03
MOST_OF_PAGES = 0.02


def test_few_texts_have_a_private_phrase() -> None:
    found = {
        folder: f"{private} of {total}"
        for folder, (private, total) in shares().items()
        if private > total * (MOST_OF_PAGES if folder == "docs" else MOST_OF_CODE)
    }
    assert not found, "python -m tests.repository.phrases FOLDER lists them"


@pytest.mark.parametrize(
    "source",
    [
        '"""What it holds."""',
        'class A:\n    """Those of a row."""',
        'def f():\n    """\n    Told by its parent."""',
        'X = 1\n"""So many rows."""',
        "x = 1  # who is late waits",
    ],
)
def test_docstrings_and_comments_are_searched(source: str) -> None:
    assert [line for line, text in texts_of(source) if PRIVATE.search(text)]


@pytest.mark.parametrize(
    "source", ['"""Return the rows."""', 'X = "What is this?"', "f = lambda: 1  # rows are sorted, so search them"]
)
def test_code_and_plain_sentences_are_not_found(source: str) -> None:
    assert not [line for line, text in texts_of(source) if PRIVATE.search(text)]


def test_pages_are_searched_by_line() -> None:
    page = "# What is asked\n\nA field that there is not is refused.\n| what is it | plain |\n"
    assert [line for line, text in lines_of(page) if PRIVATE.search(text)] == [4]
