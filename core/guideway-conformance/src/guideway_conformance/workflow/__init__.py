"""Checks of workflows."""
