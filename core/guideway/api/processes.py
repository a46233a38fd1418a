"""The kind of process that plugin code runs in."""

from __future__ import annotations

__all__ = ["in_killable_host"]

_in_killable_host = False


def in_killable_host() -> bool:
    """Return whether this process only runs grammar strategies or modifiers for another process, which may kill it.

    No model and no code of users runs here, so a plugin may load less of its library than it would elsewhere.
    """
    return _in_killable_host


def enter_killable_host() -> None:
    """Let `in_killable_host` return True in this process and all that it forks. For the programs of hosts."""
    global _in_killable_host
    _in_killable_host = True
