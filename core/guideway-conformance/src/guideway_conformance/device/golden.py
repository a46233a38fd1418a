"""Bitmasks and what they allow, written down by hand."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EXTREMES", "GOLDEN", "KNOWN_ANSWERS", "Golden"]


@dataclass(frozen=True, slots=True)
class Golden:
    """One call of `DeviceBackend.apply_bitmask`."""

    num_rows: int
    width: int
    rows: tuple[int, ...]
    words: tuple[tuple[int, ...], ...]
    """As they would be written in uint32."""
    allowed: tuple[tuple[int, ...], ...]
    """For each of `rows`: the tokens that stay."""


GOLDEN = (
    Golden(1, 1, (0,), ((0x1,),), ((0,),)),
    Golden(1, 1, (0,), ((0xFFFFFFFE,),), ((),)),
    Golden(2, 8, (1,), ((0xA5,),), ((0, 2, 5, 7),)),
    Golden(1, 32, (0,), ((0x80000001,),), ((0, 31),)),
    Golden(1, 33, (0,), ((0x80000000, 0x1),), ((31, 32),)),
    Golden(1, 33, (0,), ((0x7, 0xFFFFFFFE),), ((0, 1, 2),)),
    Golden(1, 40, (0,), ((0x00010000, 0xF0),), ((16, 36, 37, 38, 39),)),
    Golden(1, 40, (0,), ((0xC0000000,),), ((30, 31),)),
    Golden(1, 5, (0,), ((0x10, 0xFFFFFFFF),), ((4,),)),
    Golden(1, 70, (0,), ((0x0, 0x0, 0x21),), ((64, 69),)),
    Golden(4, 40, (3, 0), ((0x2, 0x0), (0x0, 0x4)), ((1,), (34,))),
    Golden(3, 36, (2, 1, 0), ((0x1, 0x0), (0x2, 0x8), (0x4, 0x1)), ((0,), (1, 35), (2, 32))),
)

KNOWN_ANSWERS = (
    # philox4x32 with 10 rounds among the kat_vectors of Random123: the first block of seed, sequence, position and
    # purpose 0; its other two have counters no column of `ArrayOps.uniform` reaches
    ((0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
)
"""Seed, sequence, position, purpose, and the words of their first block."""

EXTREMES = ((347, 11_093, 2.0**-24), (707, 2935, 1 - 2.0**-24))
"""Seeds that at sequence, position and purpose 0 give the smallest or largest number there is, at which column."""
