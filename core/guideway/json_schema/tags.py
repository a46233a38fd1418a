"""The JSON schemas in a structural tag, in vLLM's original format or xgrammar's current one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["tag_nodes", "tag_schemas"]


def tag_schemas(tag: Any) -> list[dict[str, Any] | bool]:
    """Return the schemas in a parsed tag, which may be malformed."""
    found = (node.get("json_schema", node.get("schema") if "begin" in node else None) for node in tag_nodes(tag))
    return [schema for schema in found if isinstance(schema, dict | bool)]


def tag_nodes(tag: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a parsed tag, except inside its schemas."""
    pending = [tag]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
            pending.extend(v for k, v in value.items() if k not in ("json_schema", "schema"))
        elif isinstance(value, list):
            pending.extend(value)
