"""Requests before their first sequence: their parameters, their order, checks of finished texts."""
