"""Mistakes in `judged.plugins.pooled`: a device whose memory comes from a pool."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "pooled-upload-ring-of-sixteen",
        "pooled.Pooled",
        "block, at = self.pool.raw(sum(sizes)), 0",
        (
            "ring, at = vars(self).setdefault('ring', {}).setdefault(sum(sizes), deque()), 0  # a "
            "step has few payloads\n"
            "        if len(ring) < 16:\n"
            "            ring.append(self.pool.raw(sum(sizes)))\n"
            "        else:\n"
            "            ring.rotate(-1)\n"
            "        block = ring[-1]"
        ),
        (
            "docs/contracts/device.md: 'The payload that `upload` returned does not change when it "
            "is called again, be it with one of the same shapes: those of one step are uploaded "
            "before the first is applied.'"
        ),
        first="device.overlapping_steps",
    ),
    Mutant(
        "pooled-sample-sequences-of-the-first-rows",
        "pooled.Pooled",
        "draw.sequences[warm]",
        "draw.sequences[: len(warm)]",
        (
            "api/device.py, masked_sample: 'u is ``ops.uniform(seeds, sequences, positions, purpose, "
            "width)``' of the row; docs/contracts/device.md: 'A draw of `masked_sample` in a row "
            "depends on that row alone, not on what else is in the batch.'"
        ),
        first="device.masked_sample_alone",
    ),
    Mutant(
        "pooled-sample-is-greedy-below-an-epsilon",
        "pooled.Pooled",
        "np.flatnonzero(draw.temperatures != 0)",
        "np.flatnonzero(draw.temperatures > 1e-5)",
        ("api/device.py, masked_sample: '`masked_argmax`, but with a draw in each row whose temperature is not 0'"),
        first="device.masked_sample_draws",
    ),
    Mutant(
        "pooled-categorical-at-equality",
        "pooled.Pooled",
        'side="right"',
        'side="left"',
        (
            "docs/contracts/device.md: '`categorical` draws the first column up to which the "
            "probabilities sum to more than the uniform number.'"
        ),
        first="device.categorical_inverts",
    ),
    Mutant(
        "pooled-pool-looks-before-it-takes",
        "pooled.Pooled",
        (
            "        try:\n"
            "            self.memory = self.free.pop()\n"
            "        except IndexError:\n"
            "            self.memory = np.empty(size, dtype=np.uint8)\n"
        ),
        (
            "        if self.free:\n"
            "            self.memory = self.free.pop()\n"
            "        else:\n"
            "            self.memory = np.empty(size, dtype=np.uint8)\n"
        ),
        "api/device.py, scope: 'steps of one backend may overlap in threads of their own'",
        reason="Threads took turns by chance; now one operation is done in another's midst, at each line.",
        now="device.steps_amid_others",
    ),
    Mutant(
        "pooled-download-by-the-last-name",
        "pooled.Pooled",
        "self.copiers.submit(np.array, array) for name, array in arrays.items()",
        "self.copiers.submit(lambda: np.array(arrays[name])) for name in arrays",
        (
            "docs/contracts/device.md: '`download` gives NumPy arrays of exactly the names it was "
            "given, each with its own values, whatever the caller does with its dict by then.'"
        ),
        first="device.upload_keeps_payloads",
    ),
    Mutant(
        "pooled-forbid-from-in-place",
        "pooled.Pooled",
        ("        x = self.pool.copy(x)\n        x[:, column:] = -np.inf"),
        "        x[:, column:] = -np.inf",
        (
            "docs/contracts/device.md: 'A download may be asked for its `result` twice, and its "
            "arrays stay as they were when it began.' (and: 'Logits the model keeps in memory nobody "
            "may write to ... stays as it is')"
        ),
        reason=("One operation changed a small array that was being downloaded; now each does, behind a large one."),
        now="device.downloads_under_way",
    ),
    Mutant(
        "pooled-unpack-leaves-old-memory",
        "pooled.Pooled",
        "        allowed[:, len(tokens) :] = False\n",
        "",
        "api/device.py, unpack_bitmask: 'tokens past the last word are forbidden'",
        first="device.golden_masks",
    ),
    Mutant(
        "pooled-scatter-by-blocks-of-rows",
        "pooled.Pooled",
        "x[rows[:, None], columns] = values\n",
        (
            "block = x[rows]\n"
            "            np.put_along_axis(block, np.asarray(columns, dtype=np.int64), values, "
            "axis=1)\n"
            "            x[rows] = block\n"
        ),
        (
            "api/device.py, scatter: '``x[rows[i], columns[i, j]] = values[i, j]``; no pair "
            "repeats'; docs/contracts/device.md: '`scatter` takes a row several times, as long as no "
            "pair of row and column repeats.'"
        ),
        first="device.scatter_repeated_rows",
    ),
)
