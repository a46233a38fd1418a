"""Mistakes in `judged.plugins.watermarks`: watermarks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "green-hash",
        "watermarks.Green",
        (
            "text = repr((state.salt, state.wish.window, seen)).encode()\n"
            '        seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")'
        ),
        "seed = hash((state.salt, str(state.wish.window), seen)) & (2**64 - 1)",
        "In another process the same requests and tokens lead to the same.",
        first="modifier.any_process",
    ),
    Mutant(
        "green-drafts-ignored",
        "watermarks.Green",
        "seen = (*seen, draft)[-state.wish.window :]",
        "seen = state.last",
        "The row after a draft is treated as if that draft were final.",
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "green-last-draft-only",
        "watermarks.Green",
        "seen = (*seen, draft)[-state.wish.window :]",
        "seen = (*state.last, draft)[-state.wish.window :]",
        "The row after a draft is treated as if that draft were final (and those before it).",
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "green-prepare-moves",
        "watermarks.Green",
        ("                rows.append(first + j)\n"),
        ("                rows.append(first + j)\n                state.total += j == 0\n"),
        "prepare does not change a state; the same tokens lead to the same report.",
        first="modifier.replay_rebuilds_the_state",
    ),
    Mutant(
        "green-last-token-of-step",
        "watermarks.Green",
        ("        for token_id in token_ids:\n            state.green"),
        ("        for token_id in token_ids[-1:]:\n            state.green"),
        "Tokens accepted in one step, as after drafts, lead where they lead one by one.",
        first="modifier.steps_of_any_size",
    ),
    Mutant(
        "green-report-numpy",
        "watermarks.Green",
        'return {"green": state.green, "total": state.total}',
        'return {"green": np.int64(state.green), "total": state.total}',
        "report gives None or a mapping of JSON.",
        first="modifier.replay_rebuilds_the_state",
    ),
    Mutant(
        "green-fork-of-none",
        "watermarks.Green",
        ("        return replace(state)\n\n    def report(self, state: GreenState)"),
        ("        return replace(state, green=0, total=0)\n\n    def report(self, state: GreenState)"),
        "A forked state gives what its parent gives, report too.",
        first="modifier.forks_go_on_as_their_parent",
    ),
    Mutant(
        "green-prompt-forgotten",
        "watermarks.Green",
        "return GreenState(wish, request.seed, sequence.prompt_token_ids[-wish.window :])",
        "return GreenState(wish, id(request) % 7, sequence.prompt_token_ids[-wish.window :])",
        "What it does is a function of request, options, tokens and feedback.",
        first="modifier.forced_moves_nothing",
    ),
    Mutant(
        "green-shared-delta",
        "watermarks.Green",
        'payload.arrays["delta"][:, None]',
        'payload.arrays["delta"][:1][:, None]',
        "Each entry of a payload is treated on its own.",
        first="modifier.any_partition_of_rows",
    ),
    Mutant(
        "green-cached-by-token",
        "watermarks.Green",
        ("    def green_list(self, state: GreenState, seen: tuple[int, ...]) -> Bitmask:\n"),
        (
            "    def green_list(self, state: GreenState, seen: tuple[int, ...]) -> Bitmask:\n"
            '        known = self.__dict__.setdefault("known", {})\n'
            "        if seen not in known:\n"
            "            known[seen] = self.fresh_list(state, seen)\n"
            "        return known[seen]\n"
            "\n"
            "    def fresh_list(self, state: GreenState, seen: tuple[int, ...]) -> Bitmask:\n"
        ),
        ("A sequence gets what a new state that heard the same tokens gets alone (the seed is not in the key)."),
        first="modifier.replay_rebuilds_the_state",
    ),
    Mutant(
        "green-bias-as-product",
        "watermarks.Green",
        'wished = ops.gather(logits, rows) + payload.arrays["delta"][:, None]',
        'wished = ops.gather(logits, rows) * 0 + 30.0 + payload.arrays["delta"][:, None]',
        "-inf stays -inf: it is never made finite, nor NaN.",
        first="modifier.forbidden_stays_forbidden",
    ),
    Mutant(
        "green-reused-buffer",
        "watermarks.Green",
        'arrays = {"green": np.stack(lists), "delta": np.array(deltas, dtype=np.float32)}',
        (
            'buffer = self.__dict__.setdefault("buffer", np.zeros((4096, lists[0].size), dtype=np.int32))\n'
            "        buffer[: len(lists)] = np.stack(lists)\n"
            '        arrays = {"green": buffer[: len(lists)], "delta": np.array(deltas, dtype=np.float32)}'
        ),
        "The arrays of a payload stay as they are until the second prepare after.",
        first="modifier.payload_holds_a_step",
    ),
    Mutant(
        "aaronson-raw-index",
        "watermarks.Aaronson",
        "return ops.argmax(own - ops.log(-ops.log(uniform)))",
        "return ops.argmax(ops.exp(own) * 0 - ops.log(-ops.log(uniform)) + 0.01 * ops.exp(own))",
        "A token whose log-probability is -inf is not drawn.",
        first="modifier.draws_no_forbidden_token",
    ),
    Mutant(
        "aaronson-one-row",
        "watermarks.Aaronson",
        'uniform = step.uniform("aaronson", payload.rows, own.shape[1])',
        'uniform = step.uniform("aaronson", payload.rows[:1], own.shape[1])',
        "Each entry is treated on its own; a row gets the same whatever other rows are in its batch.",
        first="modifier.derived_states_do_not_move",
    ),
    Mutant(
        "aaronson-own-generator",
        "watermarks.Aaronson",
        'uniform = step.uniform("aaronson", payload.rows, own.shape[1])',
        ("uniform = ops.asarray(np.random.default_rng(7).random(own.shape, dtype=np.float32).clip(1e-7, 0.9999999))"),
        "A row gets the same whatever other rows are in its batch; drafts change nothing.",
        first="modifier.derived_states_do_not_move",
    ),
    Mutant(
        "xtc-floor",
        "watermarks.Xtc",
        "likely * (own > least) * drop, -np.inf)",
        "likely * (own > least) * drop, -1e4)",
        "None: -1e4 is as good as -inf to who writes it, and nothing is made finite.",
        correct=True,
    ),
    Mutant(
        "xtc-max-of-batch",
        "watermarks.Xtc",
        "ops.where_rows(-1.0 * own, every, own < bound, -np.inf), 1)[0]",
        "ops.where_rows(-1.0 * own, every, own < bound, -np.inf), 1)[0][:1]",
        "A row gets the same whatever other rows are in its batch.",
        first="modifier.derived_states_do_not_move",
    ),
    Mutant(
        "xtc-host-value",
        "watermarks.Xtc",
        'drop = step.uniform("xtc", rows) < payload.arrays["probability"][:, None]',
        'drop = step.uniform("xtc", rows) < float(payload.arrays["probability"].sum() / len(payload))',
        "A transform does not wait for the device: it looks at no value of an array.",
        first="modifier.waits_for_no_device",
    ),
    Mutant(
        "xtc-undeclared",
        "watermarks.Xtc",
        ("    needs = frozenset({Need.UNIFORM})\n    examples = (Example({}, logits"),
        "    examples = (Example({}, logits",
        "A transform reads nothing of the step but what its modifier declares in needs.",
        first="modifier.takes_a_step",
    ),
    Mutant(
        "xtc-shared-wish",
        "watermarks.Xtc",
        ("        return wish\n\n    def prepare(self, batch: StepBatch, states: Sequence[XtcWish | None])"),
        (
            '        self.__dict__.setdefault("wish", wish)\n'
            '        return self.__dict__["wish"]\n'
            "\n"
            "    def prepare(self, batch: StepBatch, states: Sequence[XtcWish | None])"
        ),
        "start gives each sequence a state of its own.",
        first="modifier.sequences_come_and_go",
    ),
)
