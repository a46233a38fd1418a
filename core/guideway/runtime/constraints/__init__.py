"""Constraints from the request to the mask: guard, choice of strategy, compilation, rows, closing."""
