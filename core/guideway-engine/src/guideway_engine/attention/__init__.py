"""Attention of whole prompts: the interface to `transformers`, and a package for each backend of the engine."""
