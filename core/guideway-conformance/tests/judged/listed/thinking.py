"""Mistakes in `judged.plugins.thinking`: budgets and texts that nobody may see."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "budget-forced-not-masked",
        "thinking.Budget",
        ("                if now.must is not None:\n                    rows"),
        ("                if now.must is not None and draft is None:\n                    rows"),
        "What forced gives comes because the transform leaves no other, in the rows of drafts too.",
        first="modifier.forced_is_all_that_is_left",
    ),
    Mutant(
        "budget-forced-one-more",
        "thinking.Budget",
        "        while len(found) < limit and now.must is not None:",
        "        while len(found) <= limit and now.must is not None:",
        "forced gives at most limit tokens.",
        first="modifier.forced_keeps_its_limit",
    ),
    Mutant(
        "budget-validate-all",
        "thinking.Budget",
        (
            "            if now.must not in (None, token_id):\n"
            "                return count\n"
            "            now = now.after(token_id)"
        ),
        (
            "            if now.must not in (None, token_id) and not count:\n"
            "                return count\n"
            "            now = now.after(token_id)"
        ),
        "Return how many of these drafts this modifier would let pass.",
        reason="It was held to be harmless, as the draw decides; but what others force is drafted, and may end there.",
        now="modifier.validate_knows_what_is_forbidden",
    ),
    Mutant(
        "budget-validate-none",
        "thinking.Budget",
        ("            if now.must not in (None, token_id):\n                return count\n"),
        ("            if now.must is not None:\n                return count\n"),
        "validate lets forced tokens pass.",
        first="modifier.forced_is_all_that_is_left",
    ),
    Mutant(
        "budget-forced-moves",
        "thinking.Budget",
        ("            now = now.after(found[-1])\n        return tuple(found)"),
        ("            now = state.now = now.after(found[-1])\n        return tuple(found)"),
        "forced does not move the state.",
        first="modifier.forced_moves_nothing",
    ),
    Mutant(
        "budget-clock",
        "thinking.Budget",
        ("        for token_id in token_ids:\n            state.now = state.now.after(token_id)\n"),
        (
            "        import time\n"
            "\n"
            "        state.__dict__.setdefault('since', time.monotonic())\n"
            "        for token_id in token_ids:\n"
            "            state.now = state.now.after(token_id)\n"
            "        if time.monotonic() - state.__dict__['since'] > 60:\n"
            "            state.now = replace(state.now, thought=max(state.now.thought, state.now.wish.tokens))\n"
        ),
        "The work of a modifier is a function of request and tokens: hours may pass between two steps.",
        first="modifier.the_clock_is_nothing",
    ),
    Mutant(
        "budget-finish-by-step",
        "thinking.Budget",
        "return FINISH if most and state.now.answered >= most else CONTINUE",
        "return FINISH if most and state.now.answered >= most and len(token_ids) == 1 else CONTINUE",
        "Tokens accepted in one step lead where they lead one by one (the outcome too).",
        reason="Outcomes of steps of several tokens were not compared; they are now.",
        now="modifier.steps_of_any_size",
    ),
    Mutant(
        "budget-cut-after-replay",
        "thinking.Budget",
        '        return {"thought": state.now.thought, "cut": state.now.cut}',
        '        return {"thought": state.now.thought, "cut": state.now.cut, "sequence": id(state)}',
        "A replayed state reports the same.",
        first="modifier.replay_rebuilds_the_state",
    ),
    Mutant(
        "budget-row-of-none",
        "thinking.Budget",
        ("            if state is None:\n                continue\n            now = state.now"),
        (
            "            if state is None:\n"
            "                rows.append(int(batch.row_start[i]))\n"
            "                musts.append(-1)\n"
            "                continue\n"
            "            now = state.now"
        ),
        "A payload speaks of no row of a sequence without a state.",
        first="modifier.none_leaves_rows_alone",
    ),
    Mutant(
        "budget-int64-rows",
        "thinking.Budget",
        'return Payload(np.array(rows, dtype=np.int32), {"must": np.array(musts, dtype=np.int32)})',
        'return Payload(np.array(rows), {"must": np.array(musts, dtype=np.int32)})',
        "The rows of a payload are a NumPy array int32[m].",
        first="modifier.payload_rows_are_rows",
    ),
    Mutant(
        "budget-raises-logits",
        "thinking.Budget",
        "return ops.where_rows(logits, rows, (must >= 0) * (columns[None, :] != must), -np.inf)",
        (
            "logits = ops.where_rows(logits, rows, (must >= 0) * (columns[None, :] != must), -np.inf)\n"
            "        return ops.where_rows(logits, rows, columns[None, :] == must, 0.0)"
        ),
        "At Stage.MASK a modifier only forbids: a logit keeps its value or becomes -inf.",
        first="modifier.forbidden_stays_forbidden",
    ),
    Mutant(
        "budget-slot-memory",
        "thinking.Budget",
        ("            now = state.now\n            for j, draft"),
        (
            "            now = self.__dict__.setdefault('slots', {}).setdefault((int(batch.slots[i]), "
            "state.now.thought), state.now)\n"
            "            for j, draft"
        ),
        "A sequence gets the same in every slot, whoever had it before.",
        first="modifier.forks_go_on_as_their_parent",
    ),
    Mutant(
        "unsaid-validate-loose",
        "thinking.Unsaid",
        ("            tail = self.longest(state, tail)\n        return len(token_ids)"),
        ("            tail = tail[-1:] if tail[-1:] in state.masks else b''\n        return len(token_ids)"),
        "None: a draft too many is harmless, as the draw decides.",
        correct=True,
    ),
    Mutant(
        "unsaid-bitmask-partly",
        "thinking.Unsaid",
        "return ops.where_rows(logits, rows, allowed == 0, -np.inf)",
        (
            "columns = ops.asarray(np.arange(self.context.logits_width, dtype=np.int32))\n"
            "        return ops.where_rows(logits, rows, (allowed == 0) * (columns[None, :] < "
            "self.context.vocabulary_size - 1), -np.inf)"
        ),
        ("A transform with a bitmask forbids what that array of its payload forbids, no more and no less."),
        first="modifier.a_bitmask_is_all_it_applies",
    ),
    Mutant(
        "unsaid-not-idempotent",
        "thinking.Unsaid",
        "return ops.where_rows(logits, rows, allowed == 0, -np.inf)",
        (
            "raised = ops.gather(logits, rows) * 1.0\n"
            "        finite = (raised > -np.inf) * allowed\n"
            "        return ops.where_rows(ops.where_rows(logits, rows, allowed == 0, -np.inf), rows, "
            "finite, raised * 1.0001)"
        ),
        "At Stage.MASK a logit keeps its value; applied again it changes nothing.",
        first="modifier.a_mask_only_forbids",
    ),
    Mutant(
        "unsaid-mask-shared-writable",
        "thinking.Unsaid",
        "                masks.append(state.masks[tail])",
        (
            "                state.masks[tail].setflags(write=True)\n"
            "                state.masks[tail][0] &= -1 if j < 3 else -2\n"
            "                masks.append(state.masks[tail])"
        ),
        "Sequences share what was compiled, and leave it as it is.",
        first="modifier.takes_a_step",
    ),
    Mutant(
        "unsaid-tail-of-token",
        "thinking.Unsaid",
        (
            "            state.tail = self.longest(state, state.tail + self.context.vocabulary.tokens[token_id])\n"
            "        return CONTINUE"
        ),
        (
            "            state.tail = self.longest(state, self.context.vocabulary.tokens[token_id])\n"
            "        return CONTINUE"
        ),
        "A row after drafts gets what it would get if they were final (prepare and accept disagree).",
        first="modifier.drafts_change_nothing",
    ),
)
