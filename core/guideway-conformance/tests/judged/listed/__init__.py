"""All mistakes, by the module of `judged.plugins` they are made in."""

from judged.listed import (
    adapter,
    admission,
    attentions,
    devices,
    hidden,
    keywords,
    ledger,
    memguard,
    quotas,
    regexes,
    repetition,
    signatures,
    similarity,
    thinking,
    watermarks,
    workers,
)
from judged.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS: tuple[Mutant, ...] = tuple(
    mutant
    for module in (
        *(watermarks, repetition, thinking, hidden, regexes, devices, attentions, workers, quotas),
        *(ledger, admission, memguard, adapter, similarity, keywords, signatures),
    )
    for mutant in module.MUTANTS
)
