"""Mistakes in `judged.plugins.tiles`: a device that works on a tile of columns at a time."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "tiles-cumsum-carry-in-half",
        "tiles.Tiles",
        "            before = sums[:, cols.stop - 1 : cols.stop]\n",
        "            before = before + x[:, cols].sum(axis=1, keepdims=True)\n",
        "api/device.py, cumsum: 'Running sums along each row, in at least float32.'",
        reason=(
            "Numbers of float16 were summed over 5000 columns of ones, wide rows in float32 alone; "
            "now all types are summed over wide rows."
        ),
        now="device.operations_at_extremes",
    ),
    Mutant(
        "tiles-scale-factors-in-half",
        "tiles.Tiles",
        "(x[rows, cols] * factors).astype(x.dtype)",
        "x[rows, cols] * factors.astype(x.dtype)",
        (
            "api/device.py, scale_rows: 'factors must be positive, so that -inf stays -inf'; "
            "docs/contracts/device.md: 'The operations that change an array keep its dtype, and take "
            "values and factors of float32 for one of float16.'"
        ),
        reason="Factors were numbers of float16 too; now there are smaller and larger ones, beside -inf.",
        now="device.operations_at_extremes",
    ),
    Mutant(
        "tiles-masked-argmax-last-of-equal-tiles",
        "tiles.Tiles",
        "better = block[every, there] > best",
        "better = block[every, there] >= best",
        "api/device.py, masked_argmax: 'the column of the largest logit, the first of equals'",
        first="device.masked_argmax_finds",
    ),
    Mutant(
        "tiles-masked-argmax-nan-of-last-tile",
        "tiles.Tiles",
        "has_nan |= nans.any(axis=1)",
        "has_nan = nans.any(axis=1)",
        "api/device.py, masked_argmax: 'If one considered is NaN the logit is NaN'",
        reason="NaN stood in rows of 64 columns; now in wide ones, early, in the middle and late.",
        now="device.operations_at_extremes",
    ),
    Mutant(
        "tiles-token-lists-stop-at-padding",
        "tiles.Tiles",
        ("                continue\n            listed = "),
        ("                break\n            listed = "),
        (
            "api/device.py, apply_token_lists: '`lists` and `rows` are on the host; a row may be "
            "-1.'; docs/contracts/device.md: 'Entries whose row is -1 are padding to fused "
            "operations too, wherever and however many they are.'"
        ),
        first="device.fused_padding",
    ),
    Mutant(
        "tiles-bitmask-skips-tiles-that-allow-all",
        "tiles.Tiles",
        "            block = logits[rows, cols]\n",
        ("            if (words == -1).all():\n                continue\n            block = logits[rows, cols]\n"),
        (
            "api/device.py, apply_bitmask: 'if bit `token` of bitmask[i] is 0 or past its last word: "
            "logits[row, token] = -inf'"
        ),
        first="device.past_the_last_word_forbidden",
    ),
    Mutant(
        "tiles-download-keeps-a-reference",
        "tiles.Tiles",
        "{name: np.array(array) for name, array in arrays.items()}",
        "{name: np.asarray(array) for name, array in arrays.items()}",
        (
            "docs/contracts/device.md: 'A download may be asked for its `result` twice, and its "
            "arrays stay as they were when it began.'"
        ),
        first="device.download_results_stay",
    ),
    Mutant(
        "tiles-log-softmax-largest-of-first-tile",
        "tiles.Tiles",
        ("largest = x.max(axis=1, keepdims=True)\n        largest"),
        ("largest = x[:, :TILE].max(axis=1, keepdims=True)\n        largest"),
        (
            "docs/contracts/device.md: '`log_softmax` neither overflows nor vanishes where a whole "
            "row is large or small, such as logits over a small temperature: its probabilities still "
            "sum to 1.'"
        ),
        reason=(
            "Large numbers filled whole rows; now one stands among others, early, in the middle and late in wide rows."
        ),
        now="device.operations_at_extremes",
    ),
    Mutant(
        "tiles-log-flushes-subnormals",
        "tiles.Tiles",
        "return np.asarray(np.log(x))",
        "return np.where(x < np.finfo(x.dtype).tiny, x.dtype.type(-np.inf), np.log(x))",
        ("api/device.py, log: 'Elementwise natural logarithm, any shape; 0 gives -inf without a warning.'"),
        reason=(
            "The smallest numbers of a type were not among those whose logarithm was asked for; now "
            "those of float16 are, and the smallest normal ones of the others."
        ),
        now="device.operations_at_extremes",
    ),
)
