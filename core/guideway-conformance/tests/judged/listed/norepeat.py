"""Mistakes in `judged.plugins.norepeat`: no run of tokens twice."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "norepeat-column-minus-one",
        "norepeat.NoRepeat",
        "        token_ids = ops.where_rows(ops.gather(ends, every), every, known == False, 0)  # noqa: E712\n",
        "        token_ids = ops.gather(ends, every)  # nothing is banned where none is known\n",
        (
            "contracts/modifier.md: A transform without `arrays` uses `Step.ops` alone, and asks for no row "
            "or column that an array has not, so it gives the same on every device."
        ),
        first="modifier.takes_a_step",
    ),
    Mutant(
        "norepeat-one-request-spares-for-all",
        "norepeat.NoRepeat",
        '            "spare": np.array([wish.spare for wish in wishes], dtype=np.float32),\n',
        '            "spare": np.full(len(wishes), any(wish.spare for wish in wishes), dtype=np.float32),\n',
        "contracts/modifier.md: A row gets the same whatever other rows are in its batch.",
        first="modifier.operators_options_are_served",
    ),
    Mutant(
        "norepeat-ten-thousand-is-enough",
        "norepeat.NoRepeat",
        "        added = ops.where_rows(0 * differs, every, banned, -np.inf)\n",
        "        added = ops.where_rows(0 * differs, every, banned, -1e4)\n",
        "contracts/modifier.md: At Stage.MASK a modifier only forbids: a logit keeps its value or becomes -inf.",
        first="modifier.a_mask_only_forbids",
    ),
    Mutant(
        "norepeat-scatter-of-repeated-pairs",
        "norepeat.NoRepeat",
        (
            "        rows = payload.rows[:, None] + 0 * token_ids\n"
            "        return ops.add_at(logits, rows.reshape(-1), token_ids.reshape(-1), added.reshape(-1))\n"
        ),
        (
            "        values = ops.gather(logits, payload.rows, token_ids) + added\n"
            "        return ops.scatter(logits, payload.rows, token_ids, values)\n"
        ),
        (
            "docstring of ArrayOps.scatter: ``x[rows[i], columns[i, j]] = values[i, j]`` for int[m, k] "
            "`columns`; no pair repeats. / contracts/modifier.md: so it gives the same on every device"
        ),
        reason=(
            "The reference device looked at indices alone. It refuses what else the operations do not "
            "promise, such as a pair that repeats."
        ),
        now="modifier.runs_on_every_device",
    ),
    Mutant(
        "norepeat-wishes-by-request-id",
        "norepeat.NoRepeat",
        '        wish = parse_options(Wish, options, where="modifiers.norepeat")\n',
        (
            '        wishes = self.__dict__.setdefault("wishes", {})\n'
            "        if request.request_id not in wishes:  # read once for all sequences of a request\n"
            '            wishes[request.request_id] = parse_options(Wish, options, where="modifiers.norepeat")\n'
            "        wish = wishes[request.request_id]\n"
        ),
        (
            "writing/modifier.md: Do not keep notes by `request_id` or `id(...)`. Both come again, for "
            "another request or object."
        ),
        first="modifier.one_request_after_another",
    ),
    Mutant(
        "norepeat-looks-whether-anything-is-banned",
        "norepeat.NoRepeat",
        "        banned = (differs + spared == 0) * known\n",
        (
            "        banned = (differs + spared == 0) * known\n"
            "        if not int(banned.sum()):  # most steps ban nothing\n"
            "            return logits\n"
        ),
        "contracts/modifier.md: A transform does not wait for the device: it looks at no value of an array.",
        first="modifier.waits_for_no_device",
    ),
    Mutant(
        "norepeat-history-overwritten",
        "norepeat.NoRepeat",
        ("every, known == False, 0)  # noqa: E712\n        differs = payload.shared"),
        (
            "every, known == False, 0)  # noqa: E712\n"
            "        history = ops.where_rows(history, every, history < 0, self.context.vocabulary_size)  # "
            "equal to no token\n"
            "        differs = payload.shared"
        ),
        "contracts/modifier.md: A transform changes nothing of the payload or the step.",
        reason=(
            "In every host `Step.history` makes a new array at each call. `Step` says so now, and that "
            "positions and companion_rows are shared."
        ),
        correct=True,
    ),
)
