"""Engines here have small KV caches."""

from __future__ import annotations

from tests.support.engines import small_caches

__all__ = ["small_caches"]
