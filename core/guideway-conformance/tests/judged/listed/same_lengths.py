"""Mistakes in `judged.plugins.same_lengths`: attention of a packed row, sequences of one length together."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "same-lengths-looks-into-a-missing-package",
        "same_lengths.SameLengths",
        'if find_spec("torch") else',
        'if find_spec("torch.nn.functional") else',
        "api/attention.py available: Never raises, not even where a package is not installed",
        first="attention.says_whether_it_can_run",
    ),
    Mutant(
        "same-lengths-block-begins-late",
        "same_lengths.SameLengths",
        "max(0, begin - window + 1)",
        "max(0, begin - window + 2)",
        (
            "contracts/attention.md: With `causal` and `window`, a place sees so many places up to its own, "
            "its own included."
        ),
        first="attention.window_counts_places_before",
    ),
    Mutant(
        "same-lengths-wide-window-is-none",
        "same_lengths.SameLengths",
        "if window is not None and not causal:",
        "if window is not None and not causal and window < max(lengths, default=0):",
        (
            "api/attention.py attend: Raises `UnsupportedCapability` for what is not among its "
            "`capabilities`, whatever the lengths."
        ),
        first="attention.window_reaches_to_both_sides",
    ),
    Mutant(
        "same-lengths-scaled-in-16-bits",
        "same_lengths.SameLengths",
        "(queries[..., block, :].float() * scale)",
        "(queries[..., block, :] * scale).float()",
        (
            "contracts/attention.md: In float16 a result is as close to the formula's as the contract says, "
            "with scores in at least float32."
        ),
        first="attention.float16_is_close",
    ),
    Mutant(
        "same-lengths-single-places-see-themselves",
        "same_lengths.SameLengths",
        "        result = torch.zeros(1, heads, total, dim",
        (
            "        if set(lengths) == {1}:  # each sees itself alone\n"
            "            return value[:, :, None].expand(-1, -1, group, -1, -1).reshape(query.shape)\n"
            "        result = torch.zeros(1, heads, total, dim"
        ),
        (
            "api/attention.py attend: Returns a tensor of the shape and type of `query`, with any strides "
            "and no memory of the arguments"
        ),
        first="attention.arguments_stay_as_they_are",
    ),
)
