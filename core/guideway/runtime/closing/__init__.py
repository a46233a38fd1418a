"""Closing: a constrained output is complete before its budget ends.

The last tokens of a budget are kept for a completion, which is searched for with the matcher alone, proved by it, and
bounded in work; a clock ends it only where its host would be ended otherwise. `Reserve` says from the constraint how
long endings may become, `Closer` keeps the masks of a sequence to what can still be completed.

Three numbers of tokens are easily confused: the budget, which an output may have; the fewest (`Reserve.fewest`), for
which it is proved that no output has less; and the shortest that was found, which another may undercut.
"""

from __future__ import annotations

from guideway.runtime.closing.closer import SEARCH_SECONDS, Beginnings, Budget, Closer, Record
from guideway.runtime.closing.lexicon import Lexicon
from guideway.runtime.closing.reserve import Reserve

__all__ = ["SEARCH_SECONDS", "Beginnings", "Budget", "Closer", "Lexicon", "Record", "Reserve"]
