"""Validation of finished texts in hosts that hold nothing and may be killed at any time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from guideway.api.types import JsonSchema
from guideway.plugins.limits import Limits

from guideway_hosts.fork_server import HostSource, module_path
from guideway_hosts.messages import SharedMasks
from guideway_hosts.pool import Pool
from guideway_hosts.program import Answers, Built, Spec

__all__ = ["HostedJudge"]

NUM_HOSTS = 2
"""Texts validated at once."""


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


class HostedJudge:
    """Validates texts in hosts. The first text starts them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._source = HostSource(CheckSpec(module_path(), (), (), words=1), limits)
        self.pool = Pool("judge", self._source, NUM_HOSTS)

    def __call__(self, schema: JsonSchema, text: str, enforces_formats: bool) -> bool | None:
        found, _ = self.pool.call("judge", schema, text, enforces_formats, seconds=self._limits.compile_seconds)
        return found if isinstance(found, bool) else None

    def close(self) -> None:
        """Kill the hosts, even while they work."""
        self.pool.close()
        self._source.close()
