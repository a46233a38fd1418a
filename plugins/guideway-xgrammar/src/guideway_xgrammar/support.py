"""What the installed xgrammar enforces: a table per version, by ``python -m guideway_xgrammar.probe``."""

from __future__ import annotations

from guideway.json_schema.prober import SupportTable, Table, byte_vocabulary, probe

__all__ = ["SUPPORT"]


def _measure() -> Table:
    from guideway_xgrammar.strategy import Strategy

    return probe(Strategy(byte_vocabulary(), {}))


SUPPORT = SupportTable("xgrammar", "guideway_xgrammar", _measure)
