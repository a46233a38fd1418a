"""Mistakes in `judged.plugins.fading`: a penalty that fades."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "fading-fork-loses-streak",
        "fading.Fading",
        ("        copy.tokens, copy.repeats, copy.streak = state.tokens, state.repeats, state.streak\n"),
        "        copy.tokens, copy.repeats = state.tokens, state.repeats\n",
        (
            "docs/contracts/modifier.md: A forked state is a copy, however late: it gives what its parent "
            "gives, `forced`, `validate` and `report` too."
        ),
        first="modifier.forks_go_on_as_their_parent",
    ),
    Mutant(
        "fading-only-last-token-ends",
        "fading.Fading",
        (
            "            if state.wish.give_up and state.streak >= state.wish.give_up:\n"
            "                outcome = api.FINISH\n"
        ),
        ("        if state.wish.give_up and state.streak >= state.wish.give_up:\n            outcome = api.FINISH\n"),
        (
            "docs/writing/modifier.md: If one of them ends the text, `accept` returns `FINISH` for the "
            "step, whatever comes after it."
        ),
        first="modifier.steps_of_any_size",
    ),
    Mutant(
        "fading-one-buffer",
        "fading.Fading",
        (
            "        columns = np.zeros((len(rows), WIDEST), dtype=np.int32)\n"
            "        costs = np.zeros((len(rows), WIDEST), dtype=np.float32)\n"
        ),
        (
            '        if getattr(self, "room", (np.zeros(0),))[0].shape[0] < len(rows):\n'
            "            size = max(2 * len(rows), self.context.max_num_sequences)\n"
            "            self.room = np.zeros((size, WIDEST), dtype=np.int32), np.zeros((size, WIDEST), "
            "dtype=np.float32)\n"
            "        columns, costs = (array[: len(rows)] for array in self.room)\n"
            "        columns[:], costs[:] = 0, 0\n"
        ),
        ("docs/contracts/modifier.md: The arrays of a payload stay as they are until the second prepare after."),
        first="modifier.payload_holds_a_step",
    ),
    Mutant(
        "fading-costs-cached-too-coarsely",
        "fading.Fading",
        "        costs = wish.strength * 0.5 ** (np.arange(wish.window) / wish.half_life)\n",
        (
            '        known = self.__dict__.setdefault("known", {})\n'
            "        costs = known.get((wish.strength, wish.window))\n"
            "        if costs is None:\n"
            "            costs = known[wish.strength, wish.window] = wish.strength * 0.5 ** "
            "(np.arange(wish.window) / wish.half_life)\n"
        ),
        (
            "docs/contracts/modifier.md: A request gets what it would get had there been none before, "
            "whatever those asked for."
        ),
        first="modifier.options_near_its_examples_are_served",
    ),
    Mutant(
        "fading-report-repeats-the-options",
        "fading.Fading",
        ('        return {"tokens": state.tokens, "repeats": state.repeats, "gave_up": self.gave_up(state)}\n'),
        (
            "        spared = sorted(state.exempt.tolist())\n"
            '        return {"tokens": state.tokens, "repeats": state.repeats, "gave_up": '
            'self.gave_up(state), "spared": spared}\n'
        ),
        (
            "docs/writing/modifier.md: A report has to stay below 4 KiB, so do not repeat long options in "
            "it. (api: report: JSON, at most 4 KiB of it)"
        ),
        reason=(
            "A long list had the same few ids again and again, which a plugin keeps once. Lists grow by "
            "other ids too now."
        ),
        now="modifier.what_start_takes_is_served",
    ),
    Mutant(
        "fading-scatters-pairs-twice",
        "fading.Fading",
        (
            "        rows = payload.rows[:, None] + 0 * columns\n"
            "        return step.ops.add_at(logits, rows.reshape(-1), columns.reshape(-1), -1.0 * "
            "costs.reshape(-1))\n"
        ),
        (
            "        lower = step.ops.gather(logits, payload.rows, columns) - costs\n"
            "        return step.ops.scatter(logits, payload.rows, columns, lower)\n"
        ),
        ("docs/writing/modifier.md: `ops.scatter` takes no pair twice (api.device: scatter: no pair repeats)."),
        first="modifier.takes_a_step",
    ),
)
