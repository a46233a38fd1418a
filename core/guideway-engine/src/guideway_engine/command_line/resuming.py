"""Finding the answers in a file that a resumed run keeps, and rewriting the file."""
# ruff: noqa: T201 - commands print

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from guideway.errors import InvalidRequest, printable
from guideway.files import lock, replacing

__all__ = ["DIGEST", "keep_answers", "rewrite"]

DIGEST = "request_digest"
"""Key for the digest of the request in a line of a file."""

UNANSWERED = ("refused", "internal_error", "abort")
"""Finish reasons of outputs that a resumed run generates again."""


def keep_answers(number: int, path: str, digests: Mapping[str, str]) -> tuple[int, dict[int, str]]:
    """Find the complete answers in the file at `path`, claimed as the descriptor `number`, and remove incomplete lines
    and refused or failed outputs.

    Returns the descriptor to append to, which is a new one if the file was replaced, and the id of each line kept, by
    the offset at which it begins. Raises `InvalidRequest` for a file that contains anything but answers, two answers to
    one id, or an answer to a request other than that in `digests`; the file is then unchanged. Raises OSError if it
    cannot be replaced.
    """
    with os.fdopen(os.dup(number), "rb") as file:
        sizes: list[int] = []
        found: list[tuple[str, object] | None] = []
        for at, line in enumerate(file, start=1):
            sizes.append(len(line))
            found.append(_answer_of(path, at, line) if line.endswith(b"\n") else None)
    _check_answers(path, found, digests)
    begins = accumulate(sizes, initial=0)
    if None in found:
        number = rewrite(number, path, [begin for begin, answer in zip(begins, found, strict=False) if answer])
        begins = accumulate((size for size, answer in zip(sizes, found, strict=True) if answer), initial=0)
    return number, dict(zip(begins, (answer[0] for answer in found if answer), strict=False))


def rewrite(number: int, path: str, begins: Iterable[int]) -> int:
    """Replace the file at `path`, open and locked as the descriptor `number`, by one with the complete lines that begin
    at these offsets, in this order. Returns the descriptor of the new file, which is locked. Raises OSError, and then
    the file is unchanged."""
    with os.fdopen(os.dup(number), "rb") as file, replacing(path) as draft:
        for begin in begins:
            file.seek(begin)
            line = file.readline()
            draft.write(line if line.endswith(b"\n") else b"")  # an interrupt may have removed the last line
        draft.flush()
        kept = os.dup(draft.fileno())
        lock(kept)  # before another process can open it under this name
    os.close(number)
    return kept


def _answer_of(path: str, number: int, line: bytes) -> tuple[str, object] | None:
    """Return the id and the request's digest in a line of answers; None if the request must be repeated."""
    try:
        entry = json.loads(line)
        its_id, reasons = entry["id"], [each["finish_reason"] for each in (entry, *entry.get("outputs", ()))]
        digest = entry.get(DIGEST)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidRequest(
            f"{path}, line {number} is not a line of answers, so --resume does not change the file", field="output"
        ) from error
    again = any(reason in UNANSWERED for reason in reasons) or not isinstance(its_id, str)
    return None if again else (its_id, digest)


def _check_answers(path: str, found: Sequence[tuple[str, object] | None], digests: Mapping[str, str]) -> None:
    """Raise `InvalidRequest` for an answer to a request other than that in `digests`, and for two answers to one id.
    Say how many answers have no digest."""
    lines: dict[str, int] = {}
    unknown = 0
    for number, answer in enumerate(found, start=1):
        if answer is None:
            continue
        its_id, digest = answer
        if (first := lines.setdefault(its_id, number)) != number:
            raise InvalidRequest(
                f"{path}, lines {first} and {number} are both answers to the id {its_id!r}. Delete one of them, or "
                "name another file with --output; nothing was changed",
                field="output",
            )
        if its_id not in digests:
            continue
        if digest is not None and digest != digests[its_id]:
            raise InvalidRequest(
                f"{path}, line {number} is no answer to what is asked now under the id {its_id!r}: prompt, model or "
                "settings were others. Give the same input and settings as before, or name another file with --output; "
                "nothing was changed",
                field="output",
            )
        unknown += digest is None
    if unknown:
        print(
            printable(
                f"guideway: {path}: {unknown} answers do not say what was asked (an older version wrote them, or they "
            )
            + "went through a pipe); they are kept by 'id' alone",
            file=sys.stderr,
        )
