"""The JSON schemas in a structural tag, in vLLM's original format or xgrammar's current one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from guideway.json_schema.walking import Chain

__all__ = ["schemas_in", "tag_nodes", "tag_schemas"]


def tag_schemas(tag: Any) -> list[dict[str, Any] | bool]:
    """Return the schemas in a parsed tag, which may be malformed."""
    return [schema for _, schema in schemas_in(tag)]


def tag_nodes(tag: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a parsed tag, except inside its schemas."""
    return (node for _, node in _walk(tag))


def schemas_in(tag: Any) -> Iterator[tuple[Chain, dict[str, Any] | bool]]:
    """Yield each schema in a parsed tag, which may be malformed, with its place."""
    for chain, node in _walk(tag):
        key = "json_schema" if "json_schema" in node or "begin" not in node else "schema"
        if isinstance(schema := node.get(key), dict | bool):
            yield (chain, key), schema


def _walk(tag: Any) -> Iterator[tuple[Chain, dict[str, Any]]]:
    pending: list[tuple[Chain, Any]] = [(None, tag)]
    while pending:
        chain, value = pending.pop()
        if isinstance(value, dict):
            yield chain, value
            pending.extend(((chain, k), v) for k, v in value.items() if k not in ("json_schema", "schema"))
        elif isinstance(value, list):
            pending.extend(((chain, i), item) for i, item in enumerate(value))
