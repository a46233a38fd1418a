"""What the installed lm-format-enforcer enforces: a table per version, by ``python -m guideway_lmfe.probe``."""

from __future__ import annotations

from guideway.json_schema.prober import SupportTable, Table, byte_vocabulary, probe_holders_apart

__all__ = ["SUPPORT"]


def _measure() -> Table:
    from guideway_lmfe.strategy import Strategy

    return probe_holders_apart(Strategy(byte_vocabulary(), {}))


SUPPORT = SupportTable("lm-format-enforcer", "guideway_lmfe", _measure)
