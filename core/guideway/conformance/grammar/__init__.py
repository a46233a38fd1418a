"""Checks of grammar strategies."""
