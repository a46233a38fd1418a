"""What the installed llguidance enforces: a table per version, by ``python -m guideway_llguidance.probe``."""

from __future__ import annotations

from guideway.json_schema.prober import SupportTable, Table, byte_vocabulary, probe

__all__ = ["SUPPORT"]


def _measure() -> Table:
    from guideway_llguidance.strategy import Strategy

    return probe(Strategy(byte_vocabulary(), {}))


SUPPORT = SupportTable("llguidance", "guideway_llguidance", _measure)
