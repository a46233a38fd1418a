"""Checks of device backends."""
