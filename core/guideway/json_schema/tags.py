"""The JSON schemas in a structural tag, in vLLM's original format or xgrammar's current one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from guideway.json_schema.walking import Chain, Schema

__all__ = ["schemas_in", "tag_nodes", "tag_schemas"]


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


def schemas_in(tag: Any) -> Iterator[tuple[Chain, Schema]]:
    """Yield each schema in a structural tag, with its place."""
    pending: list[tuple[Any, Chain]] = [(tag, None)]
    while pending:
        node, chain = pending.pop()
        if isinstance(node, list):
            pending += ((item, (chain, i)) for i, item in enumerate(node))
        for key, value in node.items() if isinstance(node, dict) else ():
            if key in ("json_schema", "schema") and isinstance(value, dict):
                yield (chain, key), value
            else:
                pending.append((value, (chain, key)))
