"""The reasoning gate: a constraint waits until the model has thought.

`Marker` knows where in an output the reasoning ends, `ReasoningGate` keeps the masks of a sequence until then: the
marker ends where a token ends, and comes in time.
"""

from __future__ import annotations

from guideway.runtime.reasoning.gate import GateState, ReasoningGate, check_reasoning
from guideway.runtime.reasoning.marker import Marker

__all__ = ["GateState", "Marker", "ReasoningGate", "check_reasoning"]
