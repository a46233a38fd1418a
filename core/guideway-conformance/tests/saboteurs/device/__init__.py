"""Device backends with one bug each."""

from saboteurs.device import changes, choices, draws, every, fused, masks, maths, moves

__all__ = ["changes", "choices", "draws", "every", "fused", "masks", "maths", "moves"]
