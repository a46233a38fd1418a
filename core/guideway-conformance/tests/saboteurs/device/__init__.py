"""Device backends with one bug each."""

from saboteurs.device import changes, choices, draws, every, extremes, fused, masks, maths, moves, overlap

__all__ = ["changes", "choices", "draws", "every", "extremes", "fused", "masks", "maths", "moves", "overlap"]
