"""The reasoning gate: a constraint waits until the model has thought.

`Opening` and `Marker` know where in an output the reasoning begins and ends, `ReasoningGate` keeps the masks of a
sequence until then: the marker ends where a token ends, and comes in time.
"""

from __future__ import annotations

from guideway.runtime.reasoning.gate import GateState, ReasoningGate, without_gate
from guideway.runtime.reasoning.marker import Marker, Opening

__all__ = ["GateState", "Marker", "Opening", "ReasoningGate", "without_gate"]
