"""Device backends with one bug each."""

from guideway.conformance.saboteurs.device import changes, choices, draws, fused, masks, maths, moves

__all__ = ["changes", "choices", "draws", "fused", "masks", "maths", "moves"]
