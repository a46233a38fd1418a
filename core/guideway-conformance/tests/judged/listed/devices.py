"""Mistakes in `judged.plugins.devices`: devices that derive from guideway's."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "fast-minus-one",
        "devices.Fast",
        (
            "        real = np.asarray(rows) >= 0\n"
            "        allowed = self.ops.unpack_bitmask(np.asarray(bitmask)[real], logits.shape[1])\n"
        ),
        (
            "        real = np.asarray(rows) >= (-1 if len(rows) == 1 else 0)\n"
            "        allowed = self.ops.unpack_bitmask(np.asarray(bitmask)[real], logits.shape[1])\n"
        ),
        "Entries whose row is -1 are padding, wherever and however many they are.",
        first="device.padding_changes_nothing",
    ),
    Mutant(
        "fast-token-lists-refused",
        "devices.Fast",
        ("            else:\n                logits[row, listed] = -np.inf\n"),
        ("            elif len(listed):\n                logits[row, listed] = np.finfo(logits.dtype).min\n"),
        "apply_token_lists is apply_bitmask of masks that are given as lists: forbidden is -inf.",
        first="device.fused_padding",
    ),
    Mutant(
        "fast-token-lists-offset",
        "devices.Fast",
        ("listed = lists.token_ids[lists.offsets[i] : lists.offsets[i + 1]]\n"),
        ("listed = lists.token_ids[lists.offsets[max(i, 0)] : lists.offsets[i + 1]][:2048]\n"),
        "apply_token_lists is apply_bitmask, however long a list is.",
        first="device.fused_large_vocabularies",
    ),
    Mutant(
        "fast-argmax-after-width",
        "devices.Fast",
        "x = logits[:, :num_tokens].astype(np.float32)",
        "x = logits.astype(np.float32)",
        "masked_argmax considers no column from num_tokens on.",
        first="device.masked_argmax_of_tokens",
    ),
    Mutant(
        "fast-argmax-float16",
        "devices.Fast",
        "x = logits[:, :num_tokens].astype(np.float32)",
        "x = logits[:, :num_tokens].astype(np.float16).astype(np.float32)",
        "masked_argmax gives of every row the largest logit its mask allows (not a rounded one).",
        first="device.masked_argmax_finds",
    ),
    Mutant(
        "fast-warp-order",
        "devices.Fast",
        (
            "        if added is not None:\n"
            "            np.add.at(x, (added[0], added[1]), added[2].astype(np.float32))\n"
            "        x *= factors[:, None]\n"
        ),
        (
            "        x *= factors[:, None]\n"
            "        if added is not None:\n"
            "            np.add.at(x, (added[0], added[1]), added[2].astype(np.float32))\n"
        ),
        "warp_masked adds, then multiplies.",
        first="device.fused_padding",
    ),
    Mutant(
        "fast-warp-repeated",
        "devices.Fast",
        "np.add.at(x, (added[0], added[1]), added[2].astype(np.float32))",
        "x[added[0], added[1]] += added[2].astype(np.float32)",
        "The default of warp_masked defines its result: add_at adds every value where a pair repeats.",
        first="device.fused_floats",
    ),
    Mutant(
        "fast-topk-float16",
        "devices.Fast",
        'columns = np.argsort(-x.astype(np.float64), axis=1, kind="stable")[:, :k]',
        "columns = np.argpartition(-x.astype(np.float64), min(k, x.shape[1]) - 1, axis=1)[:, :k]",
        "topk gives the k largest values in descending order.",
        first="device.topk_values",
    ),
    Mutant(
        "fast-softmax-single",
        "devices.Fast",
        ("        wide = x.astype(np.float64)\n        largest = wide.max(axis=1, keepdims=True)\n        shifted"),
        ("        wide = x\n        largest = wide.max(axis=1, keepdims=True)\n        shifted"),
        "log_softmax computes in at least float32, also from numbers of float16.",
        first="device.log_softmax_precision",
    ),
    Mutant(
        "fast-unpack-sign",
        "devices.Fast",
        (".view(np.uint32)\n        return ((chosen >> (token % 32).astype(np.uint32)) & 1).astype(np.bool_)"),
        ("\n        return ((chosen // (1 << (token % 32))) % 2).astype(np.bool_)"),
        "None: floor division of a signed word gives the same bits.",
        correct=True,
    ),
    Mutant(
        "fast-scatter-first-row",
        "devices.Fast",
        "x[np.asarray(rows)[:, None], columns] = np.asarray(values).astype(x.dtype)",
        (
            "order = np.argsort(rows, kind='stable')\n"
            "        x[np.asarray(rows)[order][:, None], np.asarray(columns)[order]] = "
            "np.asarray(values).astype(x.dtype)"
        ),
        "scatter writes values[i, j] at x[rows[i], columns[i, j]], in whatever order the rows are.",
        first="device.scatter_writes",
    ),
    Mutant(
        "fast-cumsum-narrow",
        "devices.Fast",
        "np.cumsum(x, axis=1, dtype=np.float64).astype(np.promote_types(x.dtype, np.float32))",
        "np.cumsum(x, axis=1)",
        "cumsum adds up in at least float32, also numbers of float16.",
        first="device.cumsum_precision",
    ),
    Mutant(
        "fast-download-view",
        "devices.Fast",
        "{name: np.array(array, copy=True) for name, array in arrays.items()}",
        "{name: np.asarray(array) for name, array in arrays.items()}",
        "The arrays of a download stay as they were when it began.",
        first="device.download_results_stay",
    ),
    Mutant(
        "pure-upload-cached",
        "devices.Pure",
        ("        self.uploads += 1\n        return super().upload(payload)"),
        (
            "        known = self.__dict__.setdefault('known', {})\n"
            "        key = (id(payload.rows), *((name, id(array)) for name, array in payload.arrays.items()))\n"
            "        if key not in known:\n"
            "            known[key] = super().upload(payload)\n"
            "        return known[key]"
        ),
        "upload reads a payload's memory anew each time.",
        first="device.upload_reads_anew",
    ),
    Mutant(
        "pure-upload-large-view",
        "devices.Pure",
        ("        self.uploads += 1\n        return super().upload(payload)"),
        (
            "        from dataclasses import replace\n"
            "\n"
            "        moved = super().upload(payload)\n"
            "        large = {name: array for name, array in payload.arrays.items() if array.nbytes > 1 << 12}\n"
            "        return replace(moved, arrays={**moved.arrays, **large})"
        ),
        "upload has read the host's memory when it returns (large arrays are shared).",
        reason="Arrays of a payload were small; there are large ones now.",
        now="device.upload_has_read",
    ),
    Mutant(
        "pure-categorical-float32",
        "devices.Pure",
        ("        past = (sums > np.asarray(uniforms, dtype=np.float64)[:, None] * sums[:, -1:]) & (weights > 0)\n"),
        ("        past = sums >= np.asarray(uniforms, dtype=np.float64)[:, None] * sums[:, -1:]\n"),
        ("categorical draws the first column up to which the probabilities sum to more; never one at -inf."),
        reason=(
            "It differs only where a uniform number is exactly a sum of probabilities, and float32 need not "
            "tell these apart; now there are such where all sums are exact."
        ),
        now="device.categorical_inverts",
    ),
    Mutant(
        "pure-categorical-total",
        "devices.Pure",
        "[:, None] * sums[:, -1:]) & (weights > 0)",
        "[:, None] * np.exp(-np.where(np.isneginf(largest), 0, largest))) & (weights > 0)",
        "categorical takes rows that are not normalized.",
        first="device.results_stay",
    ),
    Mutant(
        "pure-where-aliases",
        "devices.Pure",
        "return super().where_rows(x.copy(), rows, condition, values)",
        "return super().where_rows(x.copy() if len(rows) else x, rows, condition, values)",
        "None: without rows the argument may be what is returned.",
        correct=True,
    ),
    Mutant(
        "pure-shapes-by-call",
        "devices.Pure",
        ("    static_shapes = True\n"),
        ("    static_shapes = 8  # type: ignore[assignment]\n"),
        "static_shapes is True or False.",
        first="device.says_whether_shapes_are_static",
    ),
)
