"""Whole prompts at once, without a KV cache."""
