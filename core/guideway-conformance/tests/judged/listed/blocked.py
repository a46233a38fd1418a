"""Mistakes in `judged.plugins.blocked`: attention in blocks of queries."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "blocked-window-ends-one-early-behind-a-block",
        "blocked.Blocked",
        "min(length, stop + window - 1)",
        "min(length, first + BLOCK + window - 2)",
        (
            "api/attention.py: 'abs(q - k) < window'; docs/contracts/attention.md: 'With `window` "
            "alone, a place sees the places that are less than `window` away, before it and after "
            "it.'"
        ),
        first="attention.long_sequences_are_no_different",
    ),
    Mutant(
        "blocked-scores-are-clamped",
        "blocked.Blocked",
        "            distance = torch.arange(first, stop)",
        (
            "            scores = scores.clamp(-1e4, 1e4)  # no overflow\n"
            "            distance = torch.arange(first, stop)"
        ),
        (
            "api/attention.py: 'Exact is the formula of `AttentionBackend.attend` in float64 on the "
            "same inputs' for 'Scores of any finite size'"
        ),
        reason=(
            "Large scores were only asked to give finite numbers, or were all the same; now they "
            "differ and the formula is asked."
        ),
        now="attention.extreme_scores_stay_finite",
    ),
    Mutant(
        "blocked-rest-of-the-last-group-is-dropped",
        "blocked.Blocked",
        "range(0, len(firsts), at_once)",
        "range(0, len(firsts) // at_once * at_once or len(firsts), at_once)",
        (
            "docs/contracts/attention.md: 'Hundreds of short sequences of one length, or dozens of "
            "longer ones, each get what they would get alone.'"
        ),
        first="attention.many_of_one_length",
    ),
)
