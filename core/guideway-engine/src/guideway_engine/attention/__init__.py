"""Attention of whole prompts: the seam to `transformers`, and a package for each backend that ships with the engine."""
