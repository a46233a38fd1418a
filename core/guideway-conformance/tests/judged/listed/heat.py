"""Mistakes in `judged.plugins.heat`: temperature by entropy."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "heat-fork-loses-streak",
        "heat.Heat",
        "        return replace(state)\n",
        ("        return State(state.wish, state.temperature, state.mean, heard=state.heard, unheard=state.unheard)\n"),
        (
            "contracts/modifier.md: A forked state is a copy, however late: it gives what its parent gives, "
            "`forced`, `validate` and `report` too"
        ),
        first="modifier.forks_go_on_as_their_parent",
    ),
    Mutant(
        "heat-finish-looked-for-after-the-step",
        "heat.Heat",
        (
            "            self.hear(state, entropy)\n"
            "            if state.wish.patience and state.lost >= state.wish.patience:\n"
            "                state.ended = True\n"
            "                return FINISH\n"
            "        return CONTINUE\n"
        ),
        (
            "            self.hear(state, entropy)\n"
            "        state.ended = 0 < state.wish.patience <= state.lost\n"
            "        return FINISH if state.ended else CONTINUE\n"
        ),
        (
            "writing/modifier.md: If one of them ends the text, `accept` returns `FINISH` for the step, "
            "whatever comes after it."
        ),
        first="modifier.feedback_comes_for_steps_of_any_size",
    ),
    Mutant(
        "heat-numpy-number-in-report",
        "heat.Heat",
        'feedback["entropy"].tolist():',
        'feedback["entropy"]:',
        (
            "contracts/modifier.md: `report` gives None or a mapping of JSON, of at most 4 KiB, wherever its"
            " sequence has ended."
        ),
        first="modifier.replay_rebuilds_the_state",
    ),
    Mutant(
        "heat-entropy-of-forbidden-tokens",
        "heat.Heat",
        (
            "        finite = ops.where_rows(ops.gather(own, every), every, own == -np.inf, 0.0)  # 0 * -inf "
            "is not a number\n"
        ),
        "        finite = own\n",
        "contracts/modifier.md: Results are logits, or log-probabilities: numbers or -inf, no NaN.",
        first="modifier.reports_are_small_json",
    ),
    Mutant(
        "heat-payload-kept-by-slots-and-positions",
        "heat.Heat",
        '        return Payload(rows, {"factor": factors[sequences]}) if len(rows) else None\n',
        (
            "        key = (batch.slots.tobytes(), batch.positions.tobytes())\n"
            '        if getattr(self, "last", (None,))[0] != key:  # asked again for the same step\n'
            '            self.last = key, Payload(rows, {"factor": factors[sequences]})\n'
            "        return self.last[1] if len(rows) else None\n"
        ),
        ("contracts/modifier.md: To let go of one sequence is nothing to the others, nor to who has its slot next."),
        reason=(
            "Between two sequences in one slot there was always a step. Sequences that follow each other at "
            "the same slot and position, with no step between, are compared now."
        ),
        now="modifier.release_ends_one_sequence",
    ),
    Mutant(
        "heat-a-pause-ends-the-streak",
        "heat.Heat",
        "        state.lost = state.lost + 1 if entropy > wish.panic else 0\n",
        (
            "        import time\n"
            "\n"
            "        now = time.monotonic()  # a streak that stalled is none\n"
            '        going_on = now - getattr(state, "at", now) < 30\n'
            "        state.lost = (state.lost + 1 if going_on else 1) if entropy > wish.panic else 0\n"
            "        state.at = now\n"
        ),
        (
            "contracts/modifier.md: The work of a modifier is a function of request and tokens: hours may "
            "pass between two steps, and the same steps at another time of day give the same."
        ),
        reason="Rows alone were compared under another clock. All verbs are now, and where the sequence ends.",
        now="modifier.the_clock_is_nothing",
    ),
    Mutant(
        "heat-steady-as-long-as-the-temperature-is-one",
        "heat.Heat",
        "        steady = state.wish.gain == 0 and state.wish.patience == 0\n",
        "        steady = state.temperature == 1 and state.wish.patience == 0\n",
        (
            "contracts/modifier.md: A row after as many drafts as `validate` lets pass gets what it would "
            "get if they were final, though nobody has heard their feedback, so that drafts never change the"
            " distribution."
        ),
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "heat-fast-path-for-whole-batches",
        "heat.Heat",
        "        return ops.where_rows(logits, rows, True, ops.log_softmax(heated))\n",
        (
            "        heated = ops.log_softmax(heated)\n"
            "        if len(payload) == logits.shape[0]:  # every row is ours\n"
            "            return heated\n"
            "        return ops.where_rows(logits, rows, True, heated)\n"
        ),
        (
            "contracts/modifier.md: `apply` returns the logits: an array of the same library, shape and "
            "dtype, to which the next can write."
        ),
        reason=(
            "Every host gives log-probabilities of at least float32 at Stage.POST_WARP, which its docstring "
            "says now, and `Payload.take` keeps the order of the entries: what it returns is the same."
        ),
        correct=True,
    ),
)
