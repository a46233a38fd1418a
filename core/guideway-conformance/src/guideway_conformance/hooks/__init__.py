"""Checks of validators and observers."""
