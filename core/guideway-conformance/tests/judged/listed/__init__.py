"""All mistakes, by the module of `judged.plugins` they are made in."""

from judged.listed import (
    attentions,
    blocks,
    devices,
    hidden,
    online,
    plain,
    quotas,
    ragged,
    regexes,
    repetition,
    thinking,
    torchlets,
    watermarks,
    workers,
)
from judged.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS: tuple[Mutant, ...] = tuple(
    mutant
    for module in (
        *(watermarks, repetition, thinking, hidden, regexes, devices, attentions, workers, quotas),
        *(blocks, torchlets, plain, online, ragged),
    )
    for mutant in module.MUTANTS
)
