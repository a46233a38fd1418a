"""Executors, which run workers: a package for each executor."""
