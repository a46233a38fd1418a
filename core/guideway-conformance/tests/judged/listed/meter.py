"""Mistakes in `judged.plugins.meter`: the layout of a text."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "meter-key-without-case",
        "meter.Meter",
        ("        return wish.characters, wish.case\n"),
        ("        return wish.characters\n"),
        (
            "docs/contracts/modifier.md: Either of two requests with equal `compile_key`s may be given "
            "what was compiled for the other: rows, end and `report` are the same."
        ),
        first="modifier.equal_keys_mean_equal_values",
    ),
    Mutant(
        "meter-stack-by-number-of-tables",
        "meter.Meter",
        "self.stacked[0] != keys:",
        "len(self.stacked[0]) != len(keys):",
        (
            "docs/contracts/modifier.md: Whatever happened, a sequence gets what a new state that "
            "heard the same tokens gets alone."
        ),
        first="modifier.replay_rebuilds_the_state",
    ),
    Mutant(
        "meter-count-in-eight-bits",
        "meter.Meter",
        "allowed.sum(axis=1) == 1",
        "allowed.sum(axis=1, dtype=np.uint8) == 1",
        ("api/modifier.py: LogitModifier.forced: tokens that must come next, because its transform leaves no other."),
        first="modifier.forced_is_all_that_is_left",
    ),
    Mutant(
        "meter-validate-stands-still",
        "meter.Meter",
        "if place.over or is_allowed(state.table.forbidden, self.row(state.wish, place), token_id):",
        ("if place.over or is_allowed(state.table.forbidden, self.row(state.wish, state.place), token_id):"),
        (
            "api/modifier.py: LogitModifier.forced: `validate` lets them pass. / "
            "docs/contracts/modifier.md: A `validate` that does not let all drafts pass lets none pass "
            "that the transform forbids."
        ),
        first="modifier.validate_knows_what_is_forbidden",
    ),
    Mutant(
        "meter-widest-by-step",
        "meter.Meter",
        (
            "            state.place = self.after(state.wish, state.place, token_id)\n"
            "            state.widest = max(state.widest, state.place.column)\n"
        ),
        (
            "            state.place = self.after(state.wish, state.place, token_id)\n"
            "        state.widest = max(state.widest, state.place.column)\n"
        ),
        ("docs/contracts/modifier.md: Tokens accepted in one step, as after drafts, lead where they lead one by one."),
        first="modifier.steps_of_any_size",
    ),
    Mutant(
        "meter-lengths-kept-on-self",
        "meter.Meter",
        (
            "        length = np.zeros(width, dtype=np.int64)\n"
            "        length[: len(tokens)] = [n for part in parts for n in part]\n"
            "        content = (length > 0) & (length <= np"
        ),
        (
            "        self.length = np.zeros(width, dtype=np.int64)\n"
            "        self.length[: len(tokens)] = [n for part in parts for n in part]\n"
            "        content = (self.length > 0) & (self.length <= np"
        ),
        "docs/contracts/modifier.md: `compile` may be called from several threads at once.",
        reason="Threads took turns by chance. One goes before each line of another now.",
        now="modifier.compile_serves_several_threads",
    ),
    Mutant(
        "meter-pool-left-open",
        "meter.Meter",
        "        self.pool.shutdown(wait=True, cancel_futures=True)",
        "        self.stacked = None",
        (
            "docs/contracts/modifier.md: When a modifier and its transform are closed, their threads "
            "end and their files are closed, though somebody still holds them."
        ),
        first="modifier.closing_ends_threads_and_files_of_a_modifier",
    ),
    Mutant(
        "meter-sixteen-for-longest",
        "meter.Meter",
        "left = min(max(wish.width - place.column, 0), self.settings.longest)",
        "left = min(max(wish.width - place.column, 0), 16)",
        (
            "api/modifier.py: LogitModifier: `options` are the operator's (what it does is a function "
            "of request, options, tokens and feedback). / api/device.py: the effect of an index "
            "outside is undefined."
        ),
        reason="It was built with one set of the operator's options. Others come now.",
        now="modifier.operators_options_are_served",
    ),
    Mutant(
        "meter-overrun-counts-backwards",
        "meter.Meter",
        "left = min(max(wish.width - place.column, 0), self.settings.longest)",
        "left = min(wish.width - place.column, self.settings.longest)",
        (
            "api/modifier.py: LogitModifier: where it and the grammar together leave a row without a "
            "token, the row is drawn without the modifier (so `accept` may hear what it forbade). / "
            "api/device.py: ArrayOps: the effect of an index outside is undefined. So a modifier "
            "checks on the host what it looks up."
        ),
        reason="`accept` heard nothing that was forbidden, and NumPy counts from the end.",
        now="modifier.any_token_may_come",
    ),
    Mutant(
        "meter-which-in-eight-bits",
        "meter.Meter",
        'np.array(which, dtype=np.int32)}, {"forbidden"',
        'np.array(which).astype(np.uint8)}, {"forbidden"',
        "docs/contracts/modifier.md: A row gets the same whatever other rows are in its batch.",
        reason="No batch had more than its examples at once.",
        now="modifier.crowds_of_all_sorts",
    ),
)
