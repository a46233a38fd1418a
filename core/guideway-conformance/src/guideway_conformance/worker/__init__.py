"""Checks of worker mixins."""
