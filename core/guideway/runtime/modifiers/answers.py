"""Functions that check the values that modifiers return, in the process where the modifier runs."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from operator import index as index_of
from typing import Any

from guideway.api.steps import MAX_REPORT_BYTES
from guideway.errors import ConformanceError, text_of

__all__ = ["read_count", "read_edit", "read_ids", "read_key", "read_names", "read_report"]


def read_key(value: Any) -> Hashable | None:
    """Return `value`; raise TypeError if it is not hashable."""
    hash(value)
    key: Hashable | None = value
    return key


def read_names(value: Any) -> list[str]:
    """Return `value` as a list of names. Raises `ConformanceError`."""
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise ConformanceError("it must return a sequence of names")
    return list(value)


def read_report(value: Any) -> dict[str, Any]:
    """Return a copy of `value` after a round trip through JSON. Raises `ConformanceError` if it is not a mapping, not
    JSON, or more than `MAX_REPORT_BYTES`."""
    if not isinstance(value, Mapping):
        raise ConformanceError(f"it must return a mapping or None, not {type(value).__name__}")
    try:
        text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ConformanceError(f"what it returned is no JSON: {text_of(error)}") from error
    if size > MAX_REPORT_BYTES:
        raise ConformanceError(f"what it returned takes {size} bytes as JSON; {MAX_REPORT_BYTES} are the most")
    report: dict[str, Any] = json.loads(text)
    return report


def read_ids(limit: int, value: Any) -> list[int]:
    """Return the first `limit` token ids of `value`."""
    return [index_of(token_id) for token_id in value][:limit]


def read_edit(value: Any) -> tuple[tuple[int, ...], bytes]:
    """Return `value`, which are token ids and bytes. Raises `ConformanceError`."""
    if not isinstance(value, tuple | list) or len(value) != 2 or not isinstance(value[1], bytes):
        raise ConformanceError("it must return token ids and bytes")
    return tuple(index_of(token_id) for token_id in value[0]), value[1]


def read_count(most: int, value: Any) -> int:
    """Return `value` as a count from 0 to `most`. Raises `ConformanceError`."""
    count = index_of(value)
    if not 0 <= count <= most:
        raise ConformanceError(f"it must return a count from 0 to {most}, not {count}")
    return count
