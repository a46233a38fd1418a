"""Mistakes in `judged.plugins.attentions`: attention backends."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "stream-window-both",
        "attentions.Stream",
        "hidden = hidden | (distance.abs() >= window)",
        "hidden = hidden | (distance >= window)",
        ("With window alone, a place sees the places that are less than window away, before it and after it."),
        first="attention.window_reaches_to_both_sides",
    ),
    Mutant(
        "stream-groups-interleaved",
        "attentions.Stream",
        "x[0, :, block].float().repeat_interleave(group, dim=0)",
        "x[0, :, block].float().repeat(group, 1, 1)",
        "Query head i uses key head i // (h // k).",
        first="attention.query_heads_share_key_heads",
    ),
    Mutant(
        "stream-half-scores",
        "attentions.Stream",
        "scores = queries @ keys.transpose(1, 2)",
        "scores = (queries.to(query.dtype) @ keys.to(query.dtype).transpose(1, 2)).float()",
        "In float16 and bfloat16 scores are computed in at least float32.",
        first="attention.float16_is_close",
    ),
    Mutant(
        "stream-largest-zero",
        "attentions.Stream",
        "largest = torch.full_like(sums, torch.finfo(sums.dtype).min)",
        "largest = torch.full_like(sums, 0.0)",
        "Scores of any finite size give finite numbers.",
        first="attention.extreme_scores_stay_finite",
    ),
    Mutant(
        "stream-last-block",
        "attentions.Stream",
        "block = slice(first, min(first + BLOCK, stop))",
        "block = slice(first, min(first + BLOCK, key.shape[2]))",
        "What stands in other sequences has no influence on a sequence.",
        first="attention.keeps_sequences_apart",
    ),
    Mutant(
        "rows-causal-offset",
        "attentions.Rows",
        "hidden = hidden | (place[None, :] > place[:, None])",
        "hidden = hidden | (place[None, :] >= place[:, None]) & (place[:, None] > 0)",
        "With causal, a place sees those up to its own.",
        first="attention.neighbors_do_not_leak",
    ),
    Mutant(
        "rows-soft-padding",
        "attentions.Rows",
        "scores.masked_fill(hidden, -1e38)",
        "scores + -1e4 * hidden.float()",
        "What stands in padding is hidden, not made unlikely.",
        first="attention.attends",
    ),
)
