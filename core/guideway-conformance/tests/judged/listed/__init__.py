"""All mistakes, by the module of `judged.plugins` they are made in."""

from judged.listed import (
    attentions,
    brackets,
    devices,
    hidden,
    lazyre,
    quotas,
    ranges,
    regexes,
    repetition,
    thinking,
    tries,
    watermarks,
    workers,
)
from judged.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS: tuple[Mutant, ...] = tuple(
    mutant
    for module in (
        *(watermarks, repetition, thinking, hidden, regexes, devices, attentions, workers, quotas),
        *(tries, ranges, brackets, lazyre),
    )
    for mutant in module.MUTANTS
)
