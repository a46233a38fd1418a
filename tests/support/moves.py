"""Ways to move the sequence in slot 0 of a runtime; each returns its runtime and its slot."""

from __future__ import annotations

from typing import Any

from guideway.runtime.runtime import Runtime

__all__ = ["moved", "rebuilt"]


def rebuilt(subject: Runtime, admission: Any) -> tuple[Runtime, int]:
    subject.rebuild(0)
    return subject, 0


def moved(subject: Runtime, admission: Any) -> tuple[Runtime, int]:
    journal = subject.journal(0)
    subject.release(0, ended=False)
    subject.start(admission, 3, journal=journal)
    return subject, 3
