"""Combine the bounds that several schemas set for one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, floor, inf, isinf, lcm
from typing import Any, NamedTuple

from guideway.json_schema.kinds import FRACTION, INTEGER, NUMBER

__all__ = ["MOST_EXACT", "Range", "coefficient", "counts", "number_range"]

MOST_EXACT = 2**53
"""Multiples of larger numbers are not checked, since validators compute with doubles."""
_KEYWORDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")


class Range(NamedTuple):
    """A range of numbers."""

    low: float
    above: bool
    """True if `low` itself is excluded."""
    high: float
    below: bool
    """True if `high` itself is excluded."""
    multiple: Fraction | None

    def has(self, value: float) -> bool:
        """Return whether a number is between the bounds."""
        is_excluded = (self.above and value == self.low) or (self.below and value == self.high)
        return self.low <= value <= self.high and not is_excluded

    def kinds(self) -> int:
        """Return the kinds of numbers that may be in the range."""
        low, above, high, below, multiple = self
        if low > high or (low == high and (above or below)):
            return 0
        if isinf(low) or isinf(high):
            return NUMBER if multiple is None or multiple.denominator > 1 else INTEGER
        first = floor(low) + 1 if above else ceil(low)
        last = ceil(high) - 1 if below else floor(high)
        found = INTEGER if first <= last else 0
        if low < high or not found:
            found |= FRACTION
        if multiple is None:
            return found
        if multiple.denominator == 1:
            found &= ~FRACTION
        if max(abs(low), abs(high)) > MOST_EXACT:
            return found
        if last // multiple.numerator * multiple.numerator < first:
            found &= ~INTEGER
        nearest = floor(Fraction(high) / multiple) * multiple
        if below and nearest == high:
            nearest -= multiple
        if nearest < low or (above and nearest == low):
            found &= ~FRACTION
        return found

    def __str__(self) -> str:
        said = []
        if not isinf(self.low):
            said.append(f"{'above' if self.above else 'at least'} {self.low}")
        if not isinf(self.high):
            said.append(f"{'below' if self.below else 'at most'} {self.high}")
        if self.multiple is not None:
            said.append(f"a multiple of {float(self.multiple):g}")
        return " and ".join(said)


def number_range(schemas: Sequence[Mapping[str, Any]]) -> Range:
    """Return the numbers that all `schemas` allow."""
    lows: list[tuple[float, bool]] = [(-inf, False)]
    highs: list[tuple[float, bool]] = [(inf, True)]
    multiple: Fraction | None = None
    for schema in schemas:
        least, above, most, below, step = map(schema.get, _KEYWORDS)
        if least is not None:
            lows.append((least, False))
        if above is not None:
            lows.append((above, True))
        if most is not None:
            highs.append((most, True))
        if below is not None:
            highs.append((below, False))
        if step is not None:
            exact = Fraction(str(step))  # the decimal as written, not the nearest double
            multiple = exact if multiple is None else _lcm(multiple, exact)
    (low, is_above), (high, includes) = max(lows), min(highs)
    return Range(low, is_above, high, not includes, multiple)


def counts(schemas: Sequence[Mapping[str, Any]], least: str, most: str) -> tuple[float, float]:
    """Return the combined bounds of a length or count; `least` and `most` are the names of its keywords."""
    return max(schema.get(least, 0) for schema in schemas), min(schema.get(most, inf) for schema in schemas)


def _lcm(first: Fraction, second: Fraction) -> Fraction:
    whole = lcm(first.numerator * second.denominator, second.numerator * first.denominator)
    return Fraction(whole, first.denominator * second.denominator)


def coefficient(value: Any) -> int:
    """Return the digits of a number without its decimal point."""
    if isinstance(value, int):
        return abs(value)
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = fraction.rstrip("0")
    scale: int = 10 ** max(0, int(exponent or 0) - len(fraction))
    return int(whole + fraction) * scale
