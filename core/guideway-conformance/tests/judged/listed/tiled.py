"""Mistakes in `judged.plugins.tiled`: a device of NumPy that works in tiles of columns."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "tiled-list-token-at-the-width",
        "tiled.Tiled",
        "tokens[: np.searchsorted(tokens, logits.shape[1])]  # they ascend",
        'tokens[: np.searchsorted(tokens, logits.shape[1], side="right")]  # they ascend',
        (
            "contracts/device.md: Tokens of a list past the width of the logits mean nothing, not even in "
            "the next row. (bitmask.py: listed tokens past the width mean nothing.)"
        ),
        first="device.token_lists_past_the_width",
    ),
    Mutant(
        "tiled-negative-sequence",
        "tiled.Tiled",
        "sequences & WORD, np.int64(purpose & WORD)",
        "sequences, np.int64(purpose & WORD)",
        (
            "api/device.py uniform: counter (j // 4, positions[i], sequences[i], purpose) ... the others "
            "int32[m]. The same bits on every device."
        ),
        reason="No sequence was negative; the contract says now which word stands for one.",
        now="device.uniform_words",
    ),
    Mutant(
        "tiled-integers-through-float",
        "tiled.Tiled",
        "np.broadcast_to(np.asarray(values).astype(x.dtype), shape)",
        "np.broadcast_to(np.asarray(values, dtype=np.float32).astype(x.dtype), shape)",
        (
            "contracts/device.md: `gather`, `scatter` and `where_rows` take arrays of integers and bools "
            "too, and keep their dtype and all of their bits."
        ),
        first="device.changes_of_integers_and_bools",
    ),
    Mutant(
        "tiled-download-of-a-contiguous-part",
        "tiled.Tiled",
        "self.arrays = {name: np.array(array) for name, array in arrays.items()}",
        (
            "self.arrays = {\n"
            "            name: np.array(array) if array.base is None else np.require(array, "
            'requirements="C")  # a part is packed\n'
            "            for name, array in arrays.items()\n"
            "        }"
        ),
        (
            "contracts/device.md: A download may be asked for its `result` twice, and its arrays stay as "
            "they were when it began. (writing/device.md: Downloads are copies.)"
        ),
        reason=(
            "Whole arrays alone were changed after their download began; parts of arrays, and logits of each "
            "kind, are now."
        ),
        now="device.download_results_stay",
    ),
    Mutant(
        "tiled-later-of-equals",
        "tiled.Tiled",
        "better = (value > best)",
        "better = (value >= best)",
        "api/device.py argmax: the column of each row's largest value, the first one of equals.",
        first="device.argmax_of_equals",
    ),
    Mutant(
        "tiled-all-rows-in-their-order",
        "tiled.Tiled",
        "return x[rows] if columns is None else x[rows[:, None], columns]",
        (
            "if columns is None and len(rows) == len(x):\n"
            "            return x.copy()  # every row\n"
            "        return x[rows] if columns is None else x[rows[:, None], columns]"
        ),
        ("contracts/device.md: `gather` without columns takes whole rows, in the order asked for, a row also twice."),
        first="device.gather_rows",
    ),
    Mutant(
        "tiled-full-words-need-no-mask",
        "tiled.Tiled",
        ("            allowed = unpack(bitmask, tile)\n            logits[rows, tile] = np"),
        (
            "            if (bitmask[:, tile.start // 32 : -(-tile.stop // 32)] == -1).all():\n"
            "                continue  # all is allowed\n"
            "            allowed = unpack(bitmask, tile)\n"
            "            logits[rows, tile] = np"
        ),
        "contracts/device.md: Tokens past a row's last word are forbidden.",
        first="device.past_the_last_word_forbidden",
    ),
)
