"""Closing: complete a constrained output before its budget ends, without changing outputs that fit.

Far from the end of the budget, closing does nothing: `Reserve` estimates from the constraint when to start. Near the
end, `Closer` keeps known completions (`Way`), and `Judge` excludes from a mask only tokens after which no completion is
found that fits. Closing finds and proves completions with the matcher alone. Its work is bounded, never by a clock.

Do not confuse two numbers of tokens: the budget, which is the most that an output may have; and the length of the
shortest output found, which may not be the shortest.
"""

from __future__ import annotations

from guideway.runtime.constraints.closing.closer import Beginnings, Budget, Closer, Record
from guideway.runtime.constraints.closing.lexicon import Lexicon
from guideway.runtime.constraints.closing.reserve import Reserve

__all__ = ["Beginnings", "Budget", "Closer", "Lexicon", "Record", "Reserve"]
