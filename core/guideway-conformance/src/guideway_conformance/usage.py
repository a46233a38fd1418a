"""What a process uses, and how often and how patiently to look."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["PATIENCE", "POLL_SECONDS", "processor_seconds", "resident"]

POLL_SECONDS = 0.05
"""Seconds between two checks of memory and deadlines."""
PATIENCE = 3
"""Wall-clock seconds allowed for each CPU second."""


def resident(pid: int) -> int:
    """Return the bytes of memory that `pid` uses; 0 if the system has no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def processor_seconds(pid: int) -> float:
    """Return the CPU seconds that `pid` has used; 0 if the system has no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
