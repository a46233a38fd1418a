"""Mistakes in `judged.plugins.ngramfade`: n-grams that fade."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "ng-fork-shares-the-entries",
        "ngramfade.NgramFade",
        ("    def fork(self, state: State) -> State:\n        return state.copy()"),
        (
            "    def fork(self, state: State) -> State:\n"
            "        return State(state.wish, state.length, deque(state.recent), dict(state.seen),"
            " deque(state.placed), state.repeats)"
        ),
        "modifier.py, fork: An independent copy of `state`.",
        first="modifier.forks_are_independent",
    ),
    Mutant(
        "ng-fork-forgets-repeats",
        "ngramfade.NgramFade",
        "deque(self.placed), self.repeats)",
        "deque(self.placed))",
        "modifier.py, report: a fork [tells] what its parent would, up to where they part.",
        first="modifier.forks_go_on_as_their_parent",
    ),
    Mutant(
        "ng-one-buffer",
        "ngramfade.NgramFade",
        "turn = self.steps % 2",
        "turn = 0",
        ("steps.py, Payload: The arrays may be reused by the modifier from the second `prepare` after on."),
        first="modifier.payload_holds_a_step",
    ),
    Mutant(
        "ng-values-not-cleared",
        "ngramfade.NgramFade",
        "columns[:], values[:] = 0, 0.0",
        "columns[:] = 0",
        (
            "modifier.py, LogitModifier: What it does and answers is a function of request, options,"
            " tokens and feedback."
        ),
        first="modifier.sequences_have_a_state_each",
    ),
    Mutant(
        "ng-drafts-move-the-state",
        "ngramfade.NgramFade",
        "ahead = state.copy()",
        "ahead = state",
        "modifier.py, prepare: must not change a state.",
        first="modifier.prepare_moves_nothing",
    ),
    Mutant(
        "ng-all-drafts-at-once",
        "ngramfade.NgramFade",
        (
            "                for token_id in drafts:\n"
            "                    ahead.take(token_id)\n"
            "                    self.fill"
        ),
        (
            "                for token_id in drafts:\n"
            "                    ahead.take(token_id)\n"
            "                for _ in drafts:\n"
            "                    self.fill"
        ),
        "modifier.py, prepare: The row after a draft is treated as if that draft were final.",
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "ng-last-token-only",
        "ngramfade.NgramFade",
        ("        for token_id in token_ids:\n            state.take(token_id)"),
        "        state.take(token_ids[-1])",
        (
            "writing/modifier.md: Several tokens may come in a step ... State, outcome and report"
            " are then those of the same tokens one by one."
        ),
        first="modifier.steps_of_any_size",
    ),
    Mutant(
        "ng-rows-by-slot",
        "ngramfade.NgramFade",
        (
            "        for i, state in enumerate(states):\n"
            "            if state is None:\n"
            "                continue\n"
            "            drafts"
        ),
        (
            "        for i in np.argsort(batch.slots).tolist():\n"
            "            state = states[i]\n"
            "            if state is None:\n"
            "                continue\n"
            "            drafts"
        ),
        "contracts/modifier.md: Sequences that stand in another order in the batch get the same.",
        first="modifier.order_changes_nothing",
    ),
    Mutant(
        "ng-counts-again",
        "ngramfade.NgramFade",
        "counts[token_id] = counts.get(token_id, 0) + 1",
        "counts[token_id] = sum(token == token_id for _, token in state.seen[tuple(state.recent)])",
        (
            "contracts/modifier.md: `prepare` and `accept` may look at each token of a sequence a"
            " few times, and not at all of them for each of them."
        ),
        first="modifier.work_for_a_token_has_a_budget",
    ),
    Mutant(
        "ng-fills-in-defaults",
        "ngramfade.NgramFade",
        ('        wish = api.parse_options(Wish, request.params.modifiers[self.name], where="modifiers.ngramfade")\n'),
        (
            "        options = request.params.modifiers[self.name]\n"
            "        if isinstance(options, dict):\n"
            '            options.setdefault("window", min(128, self.operator.max_window))\n'
            '        wish = api.parse_options(Wish, options, where="modifiers.ngramfade")\n'
        ),
        "contracts/modifier.md: `start` does not change the request.",
        first="modifier.start_leaves_the_request_alone",
    ),
    Mutant(
        "ng-rows-kept-by-slot",
        "ngramfade.NgramFade",
        ("            self.fill(state, columns[entry], values[entry])\n            entry += 1\n            if drafts:"),
        (
            "            key = (int(batch.slots[i]), state.length)  # a late step asks again\n"
            '            kept = self.__dict__.setdefault("kept", {})\n'
            "            if key not in kept:\n"
            "                self.fill(state, columns[entry], values[entry])\n"
            "                kept[key] = columns[entry].copy(), values[entry].copy()\n"
            "            columns[entry], values[entry] = kept[key]\n"
            "            entry += 1\n"
            "            if drafts:"
        ),
        ("contracts/modifier.md: To let go of one sequence is nothing to the others, nor to who has its slot next."),
        first="modifier.forks_go_on_as_their_parent",
    ),
    Mutant(
        "ng-room-for-sequences",
        "ngramfade.NgramFade",
        (
            "        if len(self.buffers[turn][0]) < len(rows):\n"
            "            self.buffers[turn] = self.buffer(2 * len(rows))"
        ),
        (
            "        if len(self.buffers[turn][0]) < batch.num_sequences:\n"
            "            self.buffers[turn] = self.buffer(2 * batch.num_sequences)"
        ),
        ("contracts/modifier.md: As many sequences as the context says may run at once, each with drafts."),
        first="modifier.full_batches",
    ),
    Mutant(
        "ng-rows-of-int64",
        "ngramfade.NgramFade",
        "        rows, _ = batch.select(states)\n",
        (
            "        acts = [state is not None for state in states]\n"
            "        rows = np.flatnonzero(np.repeat(acts, np.diff(batch.row_start)))\n"
        ),
        "steps.py, Payload.rows: ``int32[m]``.",
        first="modifier.payload_rows_are_rows",
    ),
    Mutant(
        "ng-wrong-options-are-defaults",
        "ngramfade.NgramFade",
        ('        wish = api.parse_options(Wish, request.params.modifiers[self.name], where="modifiers.ngramfade")\n'),
        (
            "        try:\n"
            "            wish = api.parse_options(Wish, request.params.modifiers[self.name],"
            ' where="modifiers.ngramfade")\n'
            "        except api.InvalidConfiguration:\n"
            "            wish = Wish()\n"
        ),
        (
            "writing/modifier.md: `start` refuses a request with `InvalidRequest`; modifier.py,"
            " start: an `InvalidConfiguration`, as `parse_options` raises, refuses it too."
        ),
        reason="No page says when `start` has to refuse options.",
        correct=True,
    ),
    Mutant(
        "ng-report-of-all",
        "ngramfade.NgramFade",
        '{"tokens": state.length,',
        '{"steps": self.steps, "tokens": state.length,',
        "modifier.py, report: A function of the state, as all else is: a replayed state tells the same.",
        first="modifier.replay_rebuilds_the_state",
    ),
    Mutant(
        "ng-in-float32",
        "ngramfade.NgramFade",
        "return ops.add_at(logits, payload",
        "return ops.add_at(logits + ops.asarray(np.zeros((1, 1), dtype=np.float32)), payload",
        (
            "contracts/modifier.md: `apply` returns the logits: an array of the same library, shape"
            " and dtype / Logits of float16 stay float16."
        ),
        first="modifier.half_precision_stays",
    ),
)
