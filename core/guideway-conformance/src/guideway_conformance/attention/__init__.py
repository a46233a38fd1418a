"""Checks of attention backends."""
