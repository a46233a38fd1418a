"""What the installed outlines-core enforces: a table per version, by ``python -m guideway_outlines.probe``."""

from __future__ import annotations

from guideway.json_schema.prober import SupportTable, Table, byte_vocabulary, probe_holders_apart

__all__ = ["SUPPORT"]


def _measure() -> Table:
    from guideway_outlines.strategy import Strategy

    return probe_holders_apart(Strategy(byte_vocabulary(), {"whitespace": "compact"}))


SUPPORT = SupportTable("outlines-core", "guideway_outlines", _measure)
