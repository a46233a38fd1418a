"""Workflows: choosing one for a model, creating its parts, and driving requests through them."""
