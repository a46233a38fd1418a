"""Mistakes in `judged.plugins.chunks`: packed attention by chunks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "chunks-band-without-offset",
        "chunks.Chunks",
        "        name = (offset, rows, columns, causal, window, device)\n",
        "        name = (rows, columns, causal, window, device)  # how many keys tells where they begin\n",
        (
            "contracts/attention: 'With `window` alone, a place sees the places that are less than `window` "
            "away, before it and after it.'"
        ),
        reason="Windows and lengths were few; now they are those around which implementations cut, each with each.",
        now="attention.windows_of_every_size",
    ),
    Mutant(
        "chunks-low-of-last-query",
        "chunks.Chunks",
        "            low = max(0, first - reach) // CHUNK * CHUNK\n",
        "            low = max(0, last - 1 - reach) // CHUNK * CHUNK\n",
        (
            "contracts/attention: 'With `causal` and `window`, a place sees so many places up to its own, "
            "its own included.'"
        ),
        first="attention.window_counts_places_before",
    ),
    Mutant(
        "chunks-largest-of-chunk",
        "chunks.Chunks",
        "            scores = scores - scores.amax(dim=-1, keepdim=True)\n",
        "            scores = scores - scores.amax(dim=(-2, -1), keepdim=True)\n",
        "api.attention attend: 'Scores of any finite size give finite numbers.'",
        first="attention.extreme_scores_stay_finite",
    ),
    Mutant(
        "chunks-lengths-counted",
        "chunks.Chunks",
        ("        for length, same in groupby(lengths):\n            count = len(list(same))\n"),
        "        for length, count in {each: lengths.count(each) for each in lengths}.items():\n",
        ("api.attention attend: 'The host puts sequences of one length side by side, which no result may depend on'"),
        first="attention.keeps_sequences_apart",
    ),
    Mutant(
        "chunks-result-memory-kept",
        "chunks.Chunks",
        "        result = torch.empty_like(query, memory_format=torch.contiguous_format)\n",
        (
            '        kept = vars(self).setdefault("kept", {})\n'
            "        name = (query.shape, query.dtype, query.device)\n"
            "        if name not in kept:\n"
            "            kept[name] = torch.empty_like(query, memory_format=torch.contiguous_format)\n"
            "        result = kept[name]\n"
        ),
        (
            "contracts/attention: 'A call's result does not depend on the calls before it, whatever their "
            "lengths, scales and windows, and does not change after it.'"
        ),
        first="attention.calls_do_not_remember",
    ),
    Mutant(
        "chunks-single-place-heads-tiled",
        "chunks.Chunks",
        "            if length:\n",
        (
            "            if length == 1:  # each sees itself alone\n"
            "                group = query.shape[1] // key.shape[1]\n"
            "                result[0, :, start:stop] = value[0, :, start:stop].repeat(group, 1, 1)\n"
            "            elif length:\n"
        ),
        (
            "contracts/attention: 'Query heads share key heads: of h on k, head i uses key head ``i // (h "
            "// k)``.'; 'A length may be 0 or 1'"
        ),
        first="attention.query_heads_share_key_heads",
    ),
    Mutant(
        "chunks-scales-the-argument",
        "chunks.Chunks",
        "            queries = query[:, :, first:last].float() * scale\n",
        "            queries = query[:, :, first:last].float().mul_(scale)\n",
        "api.attention attend: 'no memory of the arguments, which stay as they are'",
        first="attention.attends",
    ),
)
