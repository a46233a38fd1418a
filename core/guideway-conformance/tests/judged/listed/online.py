"""Mistakes in `judged.plugins.online`: attention with the softmax of a row in blocks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "o-smallest-score-is-finite",
        "online.Online",
        "largest = queries.new_full((*queries.shape[:3], 1), -torch.inf)",
        "largest = queries.new_full((*queries.shape[:3], 1), -1e30)",
        (
            "attend: 'Scores of any finite size give finite numbers.' and '`ATTENTION_TOLERANCES` says how "
            "exact' the result is."
        ),
        reason="Scores were not below some -1e5; now down to -1e35.",
        now="attention.extreme_scores_stay_finite",
    ),
    Mutant(
        "o-window-stops-one-early",
        "online.Online",
        "min(length, stop + window - 1)",
        "min(length, stop + window - 2)",
        "With `window` alone, a place sees the places that are less than `window` away, before it and after it.",
        first="attention.window_reaches_to_both_sides",
    ),
    Mutant(
        "o-scales-in-the-type-of-the-query",
        "online.Online",
        "query[row, :, first:stop].float().unflatten(0, (key_heads, group)) * scale",
        "(query[row, :, first:stop] * scale).float().unflatten(0, (key_heads, group))",
        "attend: 'weights = softmax([scale * dot(query[q], key[k]) for k in seen])      # in at least float32'",
        reason="Scores of 16 bits were near 300, with scale 1; now of some 30 with other scales too.",
        now="attention.bfloat16_is_close",
    ),
    Mutant(
        "o-one-workspace",
        "online.Online",
        "        result = torch.zeros(query.shape, dtype=query.dtype, device=query.device)\n",
        (
            '        kept = self.__dict__.setdefault("workspace", {})\n'
            "        size = query.shape, query.dtype, query.device\n"
            "        result = kept.setdefault(size, torch.zeros(query.shape, dtype=query.dtype, "
            "device=query.device))\n"
        ),
        (
            "A call's result does not depend on the calls before it, whatever their lengths, and does not "
            "change after it."
        ),
        first="attention.works_where_gradients_are_off",
    ),
    Mutant(
        "o-divides-at-the-end",
        "online.Online",
        (
            "                    share = total.clamp(min=torch.finfo(torch.float32).tiny)\n"
            "                    # divided at once: a sum of many large values could be more than float32 holds\n"
            "                    mixed = mixed * (kept / share) + (weights / share) @ values[:, None, block:end]\n"
            "                    largest = highest\n"
            "                result[row, :, first:stop] = mixed.flatten(0, 1).to(query.dtype)\n"
        ),
        (
            "                    mixed = mixed * (largest - base).exp() + weights @ values[:, None, block:end]\n"
            "                    largest = highest\n"
            "                result[row, :, first:stop] = (mixed / total).flatten(0, 1).to(query.dtype)\n"
        ),
        (
            "ATTENTION_TOLERANCES: 'The most that a result may differ from the exact one, by type, as a part "
            "of the largest absolute value in `value`.'"
        ),
        reason=(
            "Torch's own kernels do the same with values whose sum float32 does not hold: the contract "
            "leaves them out now, so it breaks nothing."
        ),
        correct=True,
    ),
    Mutant(
        "o-result-as-long-as-the-longest",
        "online.Online",
        "result = torch.zeros(query.shape, dtype=query.dtype, device=query.device)",
        "result = query.new_zeros((len(lengths), heads, max(lengths, default=0), query.shape[3]))",
        (
            "attend: 'Returns a tensor of the shape and type of `query`'; layout padded: 'length is at least "
            "``max(lengths)``'."
        ),
        first="attention.attends",
    ),
)
