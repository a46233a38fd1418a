"""Mistakes in `judged.plugins.rowwise`: attention under masks that are kept."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "rowwise-scaled-in-half",
        "rowwise.Rowwise",
        "query[some].to(exact).reshape(-1, shared, heads // shared, length, dim) * scale",
        "(query[some] * scale).to(exact).reshape(-1, shared, heads // shared, length, dim)",
        (
            "docs/contracts/attention.md: 'In float16 a result is as close to the formula's as the "
            "contract says, with scores in at least float32.'"
        ),
        first="attention.float16_is_close",
    ),
    Mutant(
        "rowwise-mask-kept-without-the-padding",
        "rowwise.Rowwise",
        "key = (lengths, length, causal, window)",
        "key = (lengths, causal, window)",
        (
            "api/attention.py, padded: 'where length is at least ``max(lengths)``'; "
            "docs/writing/attention.md: 'In the padded layout there may be padding after the longest "
            "sequence, or none.'"
        ),
        first="attention.attends",
    ),
    Mutant(
        "rowwise-wide-windows-are-not-refused",
        "rowwise.Rowwise",
        "        if window is not None and not causal:\n",
        (
            "        if window is not None and not causal and window < max(lengths, default=0):  # a "
            "wider one hides nothing\n"
        ),
        (
            "api/attention.py: 'Raises `UnsupportedCapability` for what is not among its "
            "`capabilities`, whatever the lengths.'"
        ),
        first="attention.window_reaches_to_both_sides",
    ),
    Mutant(
        "rowwise-available-looks-into-the-package",
        "rowwise.Rowwise",
        'find_spec("torch")',
        'find_spec("torch.nn.functional")',
        (
            "api/attention.py, available: 'Never raises, not even where a package is not installed, "
            "and imports nothing heavy but torch.'"
        ),
        reason=(
            "Only packages were hidden that `available` imports; now all that the code imports "
            "anywhere, or looks for, are."
        ),
        now="attention.says_whether_it_can_run",
    ),
    Mutant(
        "rowwise-hidden-is-the-least-number",
        "rowwise.Rowwise",
        "hidden[some, None, None], -torch.inf)",
        "hidden[some, None, None], torch.finfo(query.dtype).min)",
        (
            "api/attention.py: 'no place of another sequence has any influence'; "
            "docs/writing/attention.md: 'it is hidden, not made unlikely'"
        ),
        first="attention.extreme_scores_stay_finite",
    ),
)
