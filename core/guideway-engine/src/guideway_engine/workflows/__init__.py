"""Workflows: which one serves a model, its parts, and the driver that leads requests through them."""
