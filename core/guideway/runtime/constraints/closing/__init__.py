"""Closing: a constrained output is complete before its budget ends, and one that fits is the model's own.

Far from the end nothing is done; `Reserve` says from the constraint when to look. Near it, `Closer` keeps the
completions that are known (`Way`), and `Judge` leaves out of a mask only tokens after which none is found that fits.
Completions are found and proved with the matcher alone. The work is bounded; a clock ends it only where its host would
be ended otherwise.

Three numbers of tokens are easily confused: the budget, which an output may have; the fewest (`Reserve.fewest`), for
which it is proved that no output has less; and the shortest that was found, which another may undercut.
"""

from __future__ import annotations

from guideway.runtime.constraints.closing.closer import SEARCH_SECONDS, Beginnings, Budget, Closer, Record
from guideway.runtime.constraints.closing.lexicon import Lexicon
from guideway.runtime.constraints.closing.reserve import Reserve

__all__ = ["SEARCH_SECONDS", "Beginnings", "Budget", "Closer", "Lexicon", "Record", "Reserve"]
