"""Find the answers in a file that a run which resumes keeps."""
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence

from guideway.errors import InvalidRequest, printable
from guideway.files import lock, replacing

__all__ = ["DIGEST", "keep_answers"]

DIGEST = "request_digest"
"""The key of a line in a file under which the digest of what was asked stands."""

UNANSWERED = ("refused", "internal_error", "abort")
"""The finish reasons that a run which resumes asks again for."""


def keep_answers(number: int, path: str, digests: Mapping[str, str]) -> tuple[int, set[str], int]:
    """Find what the file at `path`, claimed as the descriptor `number`, has whole answers for. What else it holds is
    taken out of it: a torn line, and what was refused or failed. Returns the descriptor to append to, which is another
    one if the file was replaced; the ids of those in `digests` that are answered; and the number of lines kept.

    Raises `InvalidRequest` for a file that is not one of answers, has two to one id, or one to something else than what
    `digests` are of; the file then stays as it is. Raises OSError if it cannot be replaced."""
    with os.fdopen(os.dup(number), "rb") as file:
        found: list[tuple[str, object] | None] = []
        for at, line in enumerate(file, start=1):
            is_whole = line.endswith(b"\n")
            found.append(_answer_of(path, at, line) if is_whole else None)
        done = _checked(path, found, digests)
        if None not in found:
            return number, done, len(found)
        with replacing(path) as draft:
            file.seek(0)
            draft.writelines(line for line, answer in zip(file, found, strict=True) if answer is not None)
            draft.flush()
            kept = os.dup(draft.fileno())
            lock(kept)  # before anybody else can open it under this name
    os.close(number)
    return kept, done, sum(answer is not None for answer in found)


def _answer_of(path: str, number: int, line: bytes) -> tuple[str, object] | None:
    """The id in a line of answers, and the digest of what was asked; None for one that is to be asked again."""
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


def _checked(path: str, found: Sequence[tuple[str, object] | None], digests: Mapping[str, str]) -> set[str]:
    """The ids of the answers that were found to what is asked. Raises `InvalidRequest` for one to something else, and
    for two to one id."""
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
