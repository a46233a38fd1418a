"""Validation of finished texts."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from guideway.api.types import JsonObject, JsonSchema
from guideway.errors import GuidewayError, contain
from guideway.runtime.work.threads import Threads

__all__ = ["Checker", "Judge", "completed_future"]

log = logging.getLogger(__name__)

AT_ONCE = 2
"""Texts validated concurrently."""

ANY_OBJECT = JsonSchema('{"type":"object"}')


class Judge(Protocol):
    """Validates texts: `is_valid`, perhaps in another process."""

    def __call__(self, schema: JsonSchema, text: str, enforces_formats: bool) -> bool | None:
        """Return the verdict. Raises `GuidewayError` if there can be none."""

    def close(self) -> None:
        """End what is being validated."""


class InlineJudge:
    """Validates texts in this process. A pattern that does not terminate holds it up."""

    def __call__(self, schema: JsonSchema, text: str, enforces_formats: bool) -> bool | None:
        from guideway.json_schema.validity import is_valid

        most = sys.get_int_max_str_digits()
        if most and re.search(rf"[0-9]{{{most},}}", text):  # Python does not read such a number
            return None
        return is_valid(schema.parsed, text, enforces_formats)

    def close(self) -> None:
        """Do nothing: there is nothing to end."""


class Checker:
    """Validates texts against JSON schemas with `judge`, in threads."""

    def __init__(self, judge: Judge | None = None) -> None:
        self._find = judge or InlineJudge()
        self._threads = Threads("guideway-check", AT_ONCE)

    def judge(
        self,
        constraint: JsonSchema | JsonObject | None,
        text: str,
        *,
        enforces_formats: bool,
        read: Callable[[str], object] | None = None,
    ) -> Future[bool | None]:
        """Return a future that says whether `text` satisfies the constraint, if there is one, and `read` accepts it;
        its result is None if that cannot be decided. `enforces_formats`: whether the strategy that served it enforces
        all formats of the schema. `read` raises an exception for a text that it refuses."""
        schema = ANY_OBJECT if isinstance(constraint, JsonObject) else constraint
        try:
            return self._threads.submit(partial(self._judge, schema, text, enforces_formats, read))
        except GuidewayError as error:  # closed, or no thread could be started
            _log(error)
            return completed_future(None)

    def close(self) -> None:
        """End what is being validated, if that is possible."""
        self._threads.close()
        self._find.close()

    def _judge(
        self,
        schema: JsonSchema | None,
        text: str,
        enforces_formats: bool,
        read: Callable[[str], object] | None,
    ) -> bool | None:
        try:
            if read is not None:
                read(text)
        except BaseException as error:
            contain(error)
            return False
        if schema is None:
            return True
        try:
            found = self._find(schema, text, enforces_formats)
        except BaseException as error:
            contain(error)
            _log(error)
            return None
        return found if isinstance(found, bool) else None


def completed_future(verdict: bool | None) -> Future[bool | None]:
    """Return a completed future."""
    future: Future[bool | None] = Future()
    future.set_result(verdict)
    return future


def _log(error: BaseException) -> None:
    log.warning("a finished text could not be checked: %s", error)
