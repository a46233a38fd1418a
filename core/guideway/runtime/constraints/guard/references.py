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
    """Return the strongly connected components of a graph, each after those it leads to (Tarjan's algorithm,
    iterative)."""
    order = [0] * len(edges)  # 0: not visited
    low = [0] * len(edges)
    on_stack = [False] * len(edges)
    stack: list[int] = []
    found: list[list[int]] = []
    counter = 0
    for root in range(len(edges)):
        if order[root]:
            continue
        counter += 1
        order[root] = low[root] = counter
        stack.append(root)
        on_stack[root] = True
        work = [(root, iter(edges[root]))]
        while work:
            node, rest = work[-1]
            for target in rest:
                if not order[target]:
                    counter += 1
                    order[target] = low[target] = counter
                    stack.append(target)
                    on_stack[target] = True
                    work.append((target, iter(edges[target])))
                    break
                if on_stack[target]:
                    low[node] = min(low[node], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    members = []
                    while True:
                        member = stack.pop()
                        on_stack[member] = False
                        members.append(member)
                        if member == node:
                            break
                    found.append(members)
    return found
