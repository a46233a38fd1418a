"""Tokens that a modifier forces."""

from __future__ import annotations

import numpy as np

from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.modifier.verbs import LIMIT
from guideway_conformance.registry import check
from guideway_conformance.subjects import NotPerformed, expect

NUM_STEPS = 16


@check("modifier", trait="forces")
def forced_is_all_that_is_left(subject: ModifierSubject) -> None:
    """The tokens that `forced` gives come because the transform leaves no other: in the row before each of them, as
    drafts, every other one is at -inf; and `validate` lets them all pass."""
    found = 0
    bench = Bench(subject)
    for number in range(max(3, len(bench.examples))):
        sequence = bench.start(number)
        for _ in range(NUM_STEPS):
            if sequence.outcome != "continue":
                break
            forced = [int(token_id) for token_id in bench.modifier.forced(sequence.state, LIMIT)]
            found += len(forced)
            passed = bench.modifier.validate(sequence.state, tuple(forced))
            expect(passed == len(forced), f"it forces {forced}, of which its validate lets {passed} pass")
            rows = bench.peek([sequence], [forced]).of(0)
            for k, token_id in enumerate(forced):
                if rows.dtype.kind == "i":
                    expect(rows[k] == token_id, f"it forces {forced}, and in place {k} its sampler draws {rows[k]}")
                    continue
                left = np.flatnonzero(~np.isneginf(rows[k])).tolist()
                others = [other for other in left if other != token_id]
                expect(
                    not others,
                    f"it forces {forced}, but in place {k} its transform leaves {len(others)} other tokens, such as "
                    f"{others[:1]}",
                )
            bench.step([sequence])
    if not found:
        raise NotPerformed(
            "your examples never made it force a token. Add an Example to its `examples` (or `requests` in "
            f"conformance.toml) with options or `generated` after which `forced` gives one within {NUM_STEPS} tokens"
        )
