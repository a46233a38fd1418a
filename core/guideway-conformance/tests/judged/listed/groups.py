"""Mistakes in `judged.plugins.groups`: padded attention by einsum."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "groups-hidden-without-causal",
        "groups.Groups",
        "        key = (length, causal, window, device)\n",
        "        key = (length, window, device)  # windows are causal here\n",
        (
            "contracts/attention: 'A call's result does not depend on the calls before it, whatever their "
            "lengths, scales and windows'"
        ),
        first="attention.calls_do_not_remember",
    ),
    Mutant(
        "groups-refuses-after-empty",
        "groups.Groups",
        (
            "        self._check(query, key, causal, window)\n"
            "        result = torch.zeros_like(query, memory_format=torch.contiguous_format)\n"
            "        sequences, heads, longest, dim = query.shape\n"
            "        if not sequences or not longest:\n"
            "            return result\n"
        ),
        (
            "        result = torch.zeros_like(query, memory_format=torch.contiguous_format)\n"
            "        sequences, heads, longest, dim = query.shape\n"
            "        if not sequences or not longest:\n"
            "            return result\n"
            "        self._check(query, key, causal, window)\n"
        ),
        (
            "api.attention attend: 'Raises `UnsupportedCapability` for what is not among its "
            "`capabilities`, whatever the lengths.'"
        ),
        reason="What is not declared was asked for with some text; now with none as well.",
        now="attention.window_reaches_to_both_sides",
    ),
    Mutant(
        "groups-lengths-of-first-part",
        "groups.Groups",
        "            unseen = hidden | beyond[part, None, None, None, :]\n",
        "            unseen = hidden | beyond[: len(grouped[part]), None, None, None, :]\n",
        "contracts/attention: 'Sequences of any lengths in any order each get what they would get alone.'",
        reason="Large batches were of one length; now there are some of many.",
        now="attention.many_of_different_lengths",
    ),
    Mutant(
        "groups-unlikely-instead-of-hidden",
        "groups.Groups",
        "            scores = scores.masked_fill(unseen, -torch.inf)\n",
        "            scores = scores.masked_fill(unseen, -1e9)\n",
        (
            "writing/attention: 'it is hidden, not made unlikely'; contracts/attention: 'where all that is "
            "seen has the same score, however small, the mean of what is seen'"
        ),
        first="attention.extreme_scores_stay_finite",
    ),
    Mutant(
        "groups-scale-in-16-bits",
        "groups.Groups",
        "        grouped = query.float().reshape(sequences, shared, heads // shared, longest, dim) * scale\n",
        ("        grouped = (query * scale).float().reshape(sequences, shared, heads // shared, longest, dim)\n"),
        (
            "contracts/attention: 'In float16 a result is as close to the formula's as the contract says, "
            "with scores in at least float32.' (and bfloat16)"
        ),
        first="attention.float16_is_close",
    ),
    Mutant(
        "groups-single-place-returns-value",
        "groups.Groups",
        "        shared = key.shape[1]\n",
        (
            "        shared = key.shape[1]\n"
            "        if longest == 1:  # each sees itself alone\n"
            "            return value if shared == heads else value.repeat_interleave(heads // shared, dim=1)\n"
        ),
        (
            "api.attention attend: 'Returns a tensor of the shape and type of `query`, with any strides and "
            "no memory of the arguments'"
        ),
        reason=(
            "There was always padding, and the result was looked at as a copy; now there is none at times, "
            "and its memory is looked at."
        ),
        now="attention.arguments_stay_as_they_are",
    ),
    Mutant(
        "groups-first-and-last-alike",
        "groups.Groups",
        "        count = torch.tensor(lengths, device=query.device)\n",
        (
            "        alike = lengths[0] == lengths[-1]  # they come sorted\n"
            "        count = torch.tensor([lengths[0]] * sequences if alike else lengths, device=query.device)\n"
        ),
        ("api.attention attend: 'The host puts sequences of one length side by side, which no result may depend on'"),
        reason="Where the first length was the last, all were; now lengths are in many orders.",
        now="attention.lengths_in_any_order",
    ),
)
