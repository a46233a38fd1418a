"""Find phrases that readers from outside do not use, in docstrings, comments and pages.

`docs/style.md` shows the patterns and how to say the same plainly. `python -m tests.repository.phrases` prints the
share of each folder, and with paths every match in them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.repository.sources import ROOT, source_files

PATTERNS = (
    # a question word as the subject or object
    r"\b(what|who|whoever|whatever) (is|are|was|were|has|had|does|do|it|they|comes?|came|needs?|may|can|must|stands|"
    r"calls|waits|asks|takes|cannot|ended?|one|a|an|the|of)\b",
    r"\b(is|are|was|were|be) said\b|\btold\b",
    r"\banew\b",
    r"\bbesides?\b",
    r"\bso (many|much|often|far)\b",
    r"\bth(ose|at) of\b",
    r"\b(nobody|anybody|somebody)\b",
    r"\bone of them\b",
    r"\b(goes|go|gone|went) on\b",
    r"\b(stands?|lies?) (in|at|by|there|alone)\b",
    r"\b(is|are|was|were) to (be|have|do|end|find|say)\b",
    r"\b(made|makes) of\b",
    r"\b(comes|came) (of|there|for|with|then|after|before)\b",
)
PRIVATE = re.compile("|".join(PATTERNS), re.IGNORECASE)

KINDS = ("attention", "device", "formats", "grammar", "hooks", "modifier", "reference", "worker", "workflow")
REWRITTEN_LATER = (*(f"core/guideway-conformance/src/guideway_conformance/{kind}/" for kind in KINDS),)
"""Folders whose code is about to be replaced, with its texts."""

UNCOUNTED_PAGES = ("docs/contracts/", "docs/style.md")
"""Pages generated from the texts of the suite's checks, and the page that quotes the phrases."""


STRING_OR_COMMENT = re.compile(
    r'''"""(?:\\[\s\S]|[^\\])*?"""|'{3}(?:\\[\s\S]|[^\\])*?'{3}'''
    r"""|"(?:\\[\s\S]|[^"\\\n])*"|'(?:\\[\s\S]|[^'\\\n])*'|(?P<comment>\#.*)"""
)
"""Matches strings too, because they may contain ``#``. Much faster than the module `tokenize`."""


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring and comment in `source`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, " ".join(text.split())
    line, place = 1, 0
    for found in STRING_OR_COMMENT.finditer(source):
        if found["comment"]:
            line, place = line + source.count("\n", place, found.start()), found.start()
            yield line, found["comment"]


def lines_of(page: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a Markdown `page` that is prose or a table row."""
    for number, line in enumerate(page.splitlines(), 1):
        if line.strip() and not line.startswith(("```", "#")):
            yield number, line


def folder_of(path: Path) -> str:
    """Return the folder that the share of `path` counts for: the part of a core distribution, the plugin, or ``tests``.

    Pages count for ``docs``, and so do the READMEs.
    """
    parts = path.relative_to(ROOT).parts
    if path.suffix == ".md":
        return "docs"
    if parts[0] in ("plugins", "contrib"):
        return "/".join(parts[:2])
    if parts[0] != "core":
        return parts[0]
    inside = parts[:-1]
    return "/".join(inside[: 3 if parts[1] == "guideway" else 5])


def is_counted(path: Path) -> bool:
    name = str(path.relative_to(ROOT))
    if path.suffix == ".md":
        return (name.startswith("docs/") and not name.startswith(UNCOUNTED_PAGES)) or path.name == "README.md"
    return path.suffix == ".py" and not name.startswith(REWRITTEN_LATER)


def read_texts(path: Path) -> Iterable[tuple[int, str]]:
    content = path.read_text("utf-8")
    return lines_of(content) if path.suffix == ".md" else texts_of(content)


def shares() -> dict[str, tuple[int, int]]:
    """Return for each folder how many of its texts match `PRIVATE`, and how many texts it has."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in source_files():
        if is_counted(path):
            for _, text in read_texts(path):
                count = counts[folder_of(path)]
                count[0] += PRIVATE.search(text) is not None
                count[1] += 1
    return {folder: (private, total) for folder, (private, total) in counts.items()}


def main(arguments: list[str]) -> None:
    if not arguments:
        for folder, (private, total) in sorted(shares().items()):
            print(f"{private / total:6.1%} {private:5} of {total:5}  {folder}")
    wanted = [Path(argument).resolve() for argument in arguments]
    for path in source_files():
        if is_counted(path) and any(path.is_relative_to(place) for place in wanted):
            for line, text in read_texts(path):
                if found := PRIVATE.search(text):
                    print(f"{path.relative_to(ROOT)}:{line}: [{found[0]}] {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
