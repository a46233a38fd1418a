"""Finding the answers in a file that a resumed run keeps."""
# ruff: noqa: T201 - commands print

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence

from guideway.errors import InvalidRequest, printable
from guideway.files import lock, replacing

__all__ = ["DIGEST", "keep_answers"]

DIGEST = "request_digest"
"""Key for the digest of the request in a line of a file."""

UNANSWERED = ("refused", "internal_error", "abort")
"""Finish reasons of outputs that a resumed run generates again."""


def keep_answers(number: int, path: str, digests: Mapping[str, str]) -> tuple[int, set[str], int]:
    """Find the complete answers in the file at `path`, claimed as the descriptor `number`, and remove incomplete lines
    and refused or failed outputs.

    Returns the descriptor to append to, which is a new one if the file was replaced; the ids in `digests` that are
    answered; and the number of lines kept. Raises `InvalidRequest` for a file that contains anything but answers, two
    answers to one id, or an answer to a request other than that in `digests`; the file is then unchanged. Raises
    OSError if it cannot be replaced.
    """
    with os.fdopen(os.dup(number), "rb") as file:
        found: list[tuple[str, object] | None] = []
        for at, line in enumerate(file, start=1):
            is_whole = line.endswith(b"\n")
            found.append(_answer_of(path, at, line) if is_whole else None)
        done = _check_answers(path, found, digests)
        if None not in found:
            return number, done, len(found)
        with replacing(path) as draft:
            file.seek(0)
            draft.writelines(line for line, answer in zip(file, found, strict=True) if answer is not None)
            draft.flush()
            kept = os.dup(draft.fileno())
            lock(kept)  # before another process can open it under this name
    os.close(number)
    return kept, done, sum(answer is not None for answer in found)


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


def _check_answers(path: str, found: Sequence[tuple[str, object] | None], digests: Mapping[str, str]) -> set[str]:
    """Return the ids in `digests` that are answered. Raises `InvalidRequest` for an answer to another request, and for
    two answers to one id."""
    lines: dict[str, int] = {}
    done, unknown = set(), 0
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
        done.add(its_id)
        unknown += digest is None
    if unknown:
        print(
            printable(
                f"guideway: {path}: {unknown} answers do not say what was asked (an older version wrote them, or they "
            )
            + "went through a pipe); they are kept by 'id' alone",
            file=sys.stderr,
        )
    return done
