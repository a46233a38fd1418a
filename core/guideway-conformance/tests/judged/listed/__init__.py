"""All mistakes, by the module of `judged.plugins` they are made in."""

from judged.listed import (
    adapter,
    admission,
    attentions,
    blocks,
    brackets,
    chunks,
    devices,
    groups,
    hidden,
    keywords,
    lazyre,
    ledger,
    lexicon,
    loops,
    memguard,
    ngramfade,
    online,
    plain,
    quotas,
    ragged,
    ranges,
    regexes,
    repetition,
    scaffold,
    signatures,
    similarity,
    staged,
    tailfree,
    thinking,
    torchlets,
    tournament,
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
        *(tailfree, ngramfade, lexicon, tournament, scaffold),
        *(blocks, torchlets, plain, online, ragged),
        *(tries, ranges, brackets, lazyre),
        *(ledger, admission, memguard, adapter, similarity, keywords, signatures),
        *(staged, loops, groups, chunks),
    )
    for mutant in module.MUTANTS
)
