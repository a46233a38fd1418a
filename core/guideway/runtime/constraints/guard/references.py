"""Propagation of measures along references between rules or schemas, in linear time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from guideway.runtime.constraints.guard.measures import CAP

__all__ = ["Block", "Reference", "follow", "strong_components"]


@dataclass(slots=True)
class Reference:
    """A reference from one block to another."""

    target: int
    levels: int = 1
    """Levels from the start of the block to the reference, including it."""
    factor: int = 1
    """Product of the bounds that repeat it."""
    together: list[int] = field(default_factory=lambda: [1])
    """Combinations of branches that apply together with it."""


@dataclass(slots=True)
class Block:
    """A rule of a grammar, or a schema that references may lead to. Its measures include its references after
    `follow`."""

    references: list[Reference] = field(default_factory=list)
    levels: int = 0
    size: int = 0
    product: int = 1
    combinations: list[int] = field(default_factory=lambda: [1])


def follow(blocks: Sequence[Block]) -> None:
    """Add to each block the measures of its references. In a cycle, each block counts once."""
    components = strong_components([[r.target for r in block.references] for block in blocks])
    component_of = [0] * len(blocks)
    for number, members in enumerate(components):
        for member in members:
            component_of[member] = number
    for number, members in enumerate(components):  # components follow those they refer to
        inside, levels, size, product = 0, 0, 0, 1
        for member in members:
            block = blocks[member]
            inside += block.levels
            size += block.size
            product = max(product, block.product)
            for reference in block.references:
                target = blocks[reference.target]
                if component_of[reference.target] == number:
                    continue
                levels = max(levels, reference.levels + target.levels)
                size = min(CAP, size + reference.factor * target.size)
                product = min(CAP, max(product, reference.factor * target.product))
                reference.together[0] = min(CAP, reference.together[0] * target.combinations[0])
        whole = inside + levels if len(members) > 1 else max(inside, levels)
        for member in members:
            block = blocks[member]
            block.levels, block.size, block.product = whole, size, product


def strong_components(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the strongly connected components of a graph, each after those it leads to (Kosaraju's algorithm,
    iterative)."""
    order: list[int] = []
    seen: set[int] = set()
    into: list[list[int]] = [[] for _ in edges]
    work = [(node, False) for node in range(len(edges))]
    while work:
        node, is_left = work.pop()
        if is_left:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            work.append((node, True))
            for target in edges[node]:
                into[target].append(node)
                work.append((target, False))
    found: list[list[int]] = []
    for root in reversed(order):
        members, pending = [], [root]
        while pending:
            if (node := pending.pop()) in seen:
                seen.remove(node)
                members.append(node)
                pending += into[node]
        if members:
            found.append(members)
    return found[::-1]
