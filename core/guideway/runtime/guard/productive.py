"""True if any value can satisfy a schema whose references go round in a circle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guideway.errors import InvalidGrammar
from guideway.json_schema.walking import Chain, Pointer, resolve, walk

__all__ = ["check_productive"]


def check_productive(schema: Any, prefix: Chain = None) -> None:
    """Raise `InvalidGrammar` if a value would have to be infinite, or its schema is defined by nothing but itself.
    Errs on the side of letting pass.

    A schema can be satisfied once all it needs can: what it refers to, what it requires, one branch of each choice.
    Starting with those that need nothing, this spreads to whoever waited for them."""
    missing: dict[int, int] = {}
    waiting: dict[int, list[int]] = {}
    ready: list[int] = []
    alternatives = 0
    for _, node, (_, resource) in walk(schema):
        if not isinstance(node, Mapping):
            continue
        needs = [id(need) for need in _needs(node, resource)]
        for keyword in ("anyOf", "oneOf"):
            branches = node.get(keyword)
            if isinstance(branches, list) and branches and all(isinstance(branch, Mapping) for branch in branches):
                alternatives -= 1  # no id is negative
                needs.append(alternatives)
                missing[alternatives] = 1
                for branch in branches:
                    waiting.setdefault(id(branch), []).append(alternatives)
        missing[id(node)] = len(needs)
        for need in needs:
            waiting.setdefault(need, []).append(id(node))
        if not needs:
            ready.append(id(node))
    done: set[int] = set()
    while ready:
        node_id = ready.pop()
        if node_id in done:
            continue
        done.add(node_id)
        for waiter in waiting.get(node_id, ()):
            missing[waiter] -= 1
            if missing[waiter] <= 0:
                ready.append(waiter)
    if id(schema) not in done:
        raise InvalidGrammar(
            f"{Pointer(prefix)}: no value satisfies this schema, because its references require it inside itself "
            "without end",
            field="constraint",
        )


def _needs(node: Mapping[str, Any], root: Any) -> list[Any]:
    """The schemas without which nothing satisfies `node`."""
    needs: list[Any] = []
    reference = node.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        needs.append(resolve(root, reference))
    if isinstance(parts := node.get("allOf"), list):
        needs += parts
    if node.get("type") == "object" and isinstance(properties := node.get("properties"), Mapping):
        required = node.get("required")
        needs += [properties[name] for name in required or () if name in properties]
    if node.get("type") == "array":
        least = node.get("minItems", 0)
        first = node.get("prefixItems")
        first = first if isinstance(first, list) else []
        needs += first[: int(min(least, len(first)))]
        if least > len(first):
            needs.append(node.get("items"))
    return [need for need in needs if isinstance(need, Mapping)]
