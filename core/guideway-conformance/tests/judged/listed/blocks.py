"""Mistakes in `judged.plugins.blocks`: a device in NumPy arrays with a kernel of numba."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "b-padding-ends-the-list",
        "blocks.Blocks",
        ("        if row == -1:\n            continue\n        for word"),
        ("        if row == -1:\n            break\n        for word"),
        "Entries whose row is -1 are padding: wherever and however many they are, they change nothing.",
        first="device.padding_changes_nothing",
    ),
    Mutant(
        "b-rows-share-memory",
        "blocks.Blocks",
        "if not logits.flags.writeable or 0 in logits.strides:",
        "if not logits.flags.writeable:",
        (
            "from_logits: '... in float16, bfloat16 (not NumPy) or float32 and with any strides.' "
            "apply_bitmask: 'Other rows and allowed logits keep their bits.'"
        ),
        reason="Rows never shared memory; now those of torch's `expand` do.",
        now="device.from_logits_of_torch",
    ),
    Mutant(
        "b-topk-columns-unsorted",
        "blocks.Blocks",
        "return np.take_along_axis(values, order, axis=1), np.take_along_axis(some, order, axis=1)",
        "return np.take_along_axis(values, order, axis=1), some",
        "`topk` gives the columns its values are from, no column twice.",
        first="device.topk_columns",
    ),
    Mutant(
        "b-argmax-later-block-wins-ties",
        "blocks.Blocks",
        "            better = largest > best\n",
        "            better = largest >= best\n",
        "`argmax` gives the first column where several hold the largest value.",
        reason="Equals stood in the first thousand columns; now far apart as well.",
        now="device.computing_of_large_vocabularies",
    ),
    Mutant(
        "b-cumsum-carries-one-block",
        "blocks.Blocks",
        "            carried = part[:, -1:]\n",
        "            carried = x[:, first : first + BLOCK].sum(axis=1, keepdims=True, dtype=np.float64)\n",
        "`cumsum` gives running sums along each row.",
        reason="`cumsum` was not asked at the width of a vocabulary; now it is.",
        now="device.computing_of_large_vocabularies",
    ),
    Mutant(
        "b-masked-argmax-entries-by-count",
        "blocks.Blocks",
        "entry[rows[rows >= 0]] = np.flatnonzero(rows >= 0)",
        "entry[rows[rows >= 0]] = np.arange(np.count_nonzero(rows >= 0))",
        "Entries whose row is -1 are padding to fused operations too, wherever and however many they are.",
        first="device.fused_padding",
    ),
    Mutant(
        "b-masked-argmax-logit-dtype",
        "blocks.Blocks",
        "best = np.full(num_rows, -np.inf, dtype=np.float32)",
        "best = np.full(num_rows, -np.inf, dtype=logits.dtype)",
        (
            "masked_argmax: '``int[rows]`` and ``float32[rows]``: of every row of `logits` the column of the "
            "largest logit ... and that logit.'"
        ),
        first="device.fused_floats",
    ),
    Mutant(
        "b-token-list-of-the-width",
        "blocks.Blocks",
        "np.searchsorted(tokens, width)]",
        'np.searchsorted(tokens, width, side="right")]',
        "Tokens of a list past the width of the logits mean nothing, not even in the next row.",
        first="device.token_lists_past_the_width",
    ),
    Mutant(
        "b-categorical-without-shift",
        "blocks.Blocks",
        "weights = np.exp(wide - wide.max(axis=1, keepdims=True))",
        "weights = np.exp(wide)",
        "categorical: 'Rows need not be normalized.'",
        first="device.categorical_of_any_total",
    ),
    Mutant(
        "b-purpose-of-16-bits",
        "blocks.Blocks",
        "np.uint64(purpose & 0xFFFFFFFF)",
        "np.uint64(purpose & 0xFFFF)",
        (
            "`uniform` is Philox4x32-10 of seed, sequence, position and purpose, each in its place, with the "
            "same bits on every device."
        ),
        first="device.uniform_words",
    ),
    Mutant(
        "b-download-of-contiguous-arrays",
        "blocks.Blocks",
        "{name: np.array(array) for name, array in arrays.items()}",
        "{name: np.ascontiguousarray(array) for name, array in arrays.items()}",
        "A download may be asked for its `result` twice, and its arrays stay as they were when it began.",
        first="device.exp_elementwise",
    ),
    Mutant(
        "b-gather-of-a-run-is-a-view",
        "blocks.Blocks",
        "            return np.take(x, rows, axis=0)\n",
        (
            "            run = len(rows) > 0 and bool((np.diff(rows) == 1).all())\n"
            "            return x[rows[0] : rows[-1] + 1] if run else np.take(x, rows, axis=0)\n"
        ),
        "gather: 'Always a copy.'",
        first="device.gather_copies",
    ),
    Mutant(
        "b-scatter-writes-row-by-row",
        "blocks.Blocks",
        ("        x[rows[:, None], columns] = values\n        return x\n"),
        ("        for i in range(len(rows)):\n            x[rows[i], columns[i]] = values[i]\n        return x\n"),
        "ArrayOps: 'An operation that raises leaves its arguments as they were.'",
        reason=(
            "Nothing was asked of operations that raise; now they are called with too few values. After an "
            "index outside the arguments may be anything, which the contract says now."
        ),
        now="device.what_raises_changes_nothing",
    ),
    Mutant(
        "b-log-warns-of-zero",
        "blocks.Blocks",
        'with np.errstate(divide="ignore"):',
        'with np.errstate(invalid="ignore"):',
        "log: '0 gives -inf without a warning.'",
        first="device.log_of_zero",
    ),
    Mutant(
        "b-forbid-from-the-end",
        "blocks.Blocks",
        "        x[:, column:] = -np.inf\n",
        "        x[:, column - x.shape[1] :] = -np.inf\n",
        (
            "`forbid_from` sets the columns from `column` on to -inf in every row, and the columns before "
            "keep their bits."
        ),
        first="device.forbid_from_forbids",
    ),
    Mutant(
        "b-device-cpu-anything",
        "blocks.Blocks",
        'if device != "cpu":',
        'if not device.startswith("cpu"):',
        "A device that does not exist is an `InvalidConfiguration`.",
        reason="Names of devices that do not exist were quite different from those that do.",
        now="device.refuses_unknown_devices",
    ),
    Mutant(
        "b-arrays-named-after-itself",
        "blocks.Blocks",
        'arrays = "numpy"',
        'arrays = "blocks"',
        "DeviceBackend.arrays: 'The array library of its arrays: ``numpy``, ``torch``, ``jax``, ...'",
        reason="`arrays` had to be a name, not that of the library.",
        now="device.names_itself",
    ),
)
