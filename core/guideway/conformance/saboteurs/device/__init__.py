"""Device backends with one bug each."""

from guideway.conformance.saboteurs.device import changes, draws, masks, maths, moves

__all__ = ["changes", "draws", "masks", "maths", "moves"]
