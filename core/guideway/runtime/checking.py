"""Validation of finished texts, in stateless hosts that may be killed at any time."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from guideway.api.types import Constraint, JsonObject, JsonSchema
from guideway.errors import GuidewayError, contain
from guideway.plugins.limits import Limits
from guideway.runtime.grammar_hosts.fork_server import HostSource, module_path
from guideway.runtime.grammar_hosts.messages import SharedMasks
from guideway.runtime.grammar_hosts.pool import Pool
from guideway.runtime.grammar_hosts.program import Answers, Built, Spec
from guideway.runtime.threads import Threads

__all__ = ["Checker", "completed_future"]

log = logging.getLogger(__name__)

NUM_HOSTS = 2
"""Texts validated concurrently."""

ANY_OBJECT = JsonSchema('{"type":"object"}')


@dataclass(frozen=True, slots=True)
class CheckSpec(Spec):
    """The specification of hosts that validate texts."""

    what = "check"

    def build(self) -> Built:
        sys.set_int_max_str_digits(0)  # JSON numbers may have any length; the host's deadline limits the work
        from guideway.json_schema.validity import is_valid

        def judge(constraint: JsonSchema, text: str, enforces_formats: bool) -> bool | None:
            return is_valid(constraint.parsed, text, enforces_formats)

        return _Judge({"judge": judge}, {})


@dataclass(frozen=True, slots=True)
class _Judge:
    """The commands of a checking host."""

    commands: Mapping[str, Callable[..., Any]]
    beside: Mapping[str, Callable[..., Any]]

    def answers(self, shared: SharedMasks, late_seconds: float) -> Answers:
        return self

    def close(self) -> None:
        """Do nothing: the host has no resources."""


class Checker:
    """Validates texts against JSON schemas. The first text starts the hosts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._source = HostSource(CheckSpec(module_path(), (), (), words=1), limits)
        self._pool = Pool("judge", self._source, NUM_HOSTS)
        self._threads = Threads("guideway-check", NUM_HOSTS)

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
        """Kill the hosts, even while they work."""
        self._threads.close()
        self._pool.close()
        self._source.close()

    def _judge(
        self,
        schema: Constraint | None,
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
            found, _ = self._pool.call("judge", schema, text, enforces_formats, seconds=self._limits.compile_seconds)
        except GuidewayError as error:
            _log(error)
            return None
        return found if isinstance(found, bool) else None


def completed_future(verdict: bool | None) -> Future[bool | None]:
    """Return a completed future."""
    future: Future[bool | None] = Future()
    future.set_result(verdict)
    return future


def _log(error: GuidewayError) -> None:
    log.warning("a finished text could not be checked: %s", error)
