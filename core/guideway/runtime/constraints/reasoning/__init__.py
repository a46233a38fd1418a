"""The reasoning gate: a constraint begins only after the model's reasoning.

`StartMarker` and `EndMarker` find where the reasoning begins and ends. Until then `ReasoningGate` provides the masks,
so that the end marker ends at a token boundary and in time.
"""

from __future__ import annotations

from guideway.runtime.constraints.reasoning.gate import GateState, ReasoningGate, refuse_reasoning
from guideway.runtime.constraints.reasoning.marker import EndMarker, StartMarker

__all__ = ["EndMarker", "GateState", "ReasoningGate", "StartMarker", "refuse_reasoning"]
