"""All mistakes, by the module of `judged.plugins` they are made in."""

from judged.listed import (
    adapter,
    admission,
    attentions,
    blocks,
    brackets,
    chunks,
    contrast,
    devices,
    echo,
    echoes,
    elements,
    fakequant,
    finite_watch,
    groups,
    hidden,
    json_shapes,
    keywords,
    lazyre,
    ledger,
    lexical,
    lexicon,
    loops,
    memguard,
    meter,
    near_words,
    ngramfade,
    online,
    plain,
    prefer,
    quotas,
    ragged,
    ranges,
    regexes,
    repetition,
    replay_journal,
    sampling_fence,
    scaffold,
    signatures,
    similarity,
    spans,
    staged,
    steady,
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
        *(json_shapes, near_words, elements, echoes),
        *(sampling_fence, replay_journal, finite_watch, fakequant, lexical, prefer, spans),
        *(ledger, admission, memguard, adapter, similarity, keywords, signatures),
        *(contrast, echo, meter, steady),
        *(staged, loops, groups, chunks),
    )
    for mutant in module.MUTANTS
)
