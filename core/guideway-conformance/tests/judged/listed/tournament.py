"""Mistakes in `judged.plugins.tournament`: a watermark by tournaments."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "to-hash-of-python",
        "tournament.Tournament",
        (
            '        words = np.array(tail, dtype="<i4").tobytes()\n'
            "        digest = hashlib.blake2b(words, digest_size=8,"
            " key=hashlib.sha256(self.key).digest()).digest()\n"
            '        return int.from_bytes(digest, "little") >> 1'
        ),
        "        return hash((self.operator.key, tail)) & 0x7FFFFFFFFFFFFFFF",
        ("modifier.py, LogitModifier: the same after forks and replays, hours later, and in another process."),
        first="modifier.any_process",
    ),
    Mutant(
        "to-key-of-the-day",
        "tournament.Tournament",
        "key=hashlib.sha256(self.key).digest()).digest()",
        ('key=hashlib.sha256(self.key + str(__import__("time").time() // 86400).encode()).digest()).digest()'),
        (
            "modifier.py, LogitModifier: What it does and answers is a function of request, options,"
            " tokens and feedback, never of the clock."
        ),
        first="modifier.the_clock_is_nothing",
    ),
    Mutant(
        "to-uniform-of-entries",
        "tournament.Tournament",
        'step.uniform("tournament", payload.rows)',
        'step.uniform("tournament", entries)',
        "contracts/modifier.md: A row gets the same whatever other rows are in its batch.",
        first="modifier.any_partition_of_rows",
    ),
    Mutant(
        "to-floor-under-the-draw",
        "tournament.Tournament",
        "        drawn = ops.categorical(own,",
        (
            "        own = ops.where_rows(own, entries, own < -30.0, -30.0)  # for stability\n"
            "        drawn = ops.categorical(own,"
        ),
        "modifier.py, Sampler.sample: a token whose log-probability is -inf must not be drawn.",
        reason="Uniform numbers are multiples of 2**-24: what is lifted to -30 is never drawn.",
        correct=True,
    ),
    Mutant(
        "to-layers-of-int64",
        "tournament.Tournament",
        '"layers": ((), "int32")',
        '"layers": ((), "int64")',
        (
            "contracts/modifier.md: A transform emits all of its `emits` for each entry of the"
            " payload, of the declared shape and dtype."
        ),
        reason="Hosts take another width for the one declared, as devices may lack it; the rule says so now.",
        correct=True,
    ),
    Mutant(
        "to-feedback-taken-for-granted",
        "tournament.Tournament",
        "if feedback is not None:",
        "if token_ids:",
        ("modifier.py, accept: `feedback` is None where the transform did not act on every one of these rows."),
        first="modifier.feedback_may_be_missing",
    ),
    Mutant(
        "to-feedback-of-the-last",
        "tournament.Tournament",
        'zip(feedback["won"].tolist(), feedback["layers"].tolist(), strict=True)',
        'zip(feedback["won"].tolist()[-1:], feedback["layers"].tolist()[-1:], strict=True)',
        (
            "contracts/modifier.md: Several tokens of a step come with the feedback of each, in"
            " order, and lead where they lead one by one."
        ),
        first="modifier.feedback_comes_for_steps_of_any_size",
    ),
    Mutant(
        "to-feedback-kept",
        "tournament.Tournament",
        (
            '            for won, layers in zip(feedback["won"].tolist(),'
            ' feedback["layers"].tolist(), strict=True):\n'
            "                if layers:\n"
            "                    state.scored += 1\n"
            "                    state.won += won / layers\n"
            "        return api.CONTINUE\n"
            "\n"
            "    def validate(self, state: State, token_ids: Sequence[int]) -> int:\n"
            "        return len(token_ids)  # what is drawn after them depends on tokens alone\n"
            "\n"
            "    def fork(self, state: State) -> State:\n"
            "        return state.copy()\n"
            "\n"
            "    def report(self, state: State) -> Mapping[str, Any] | None:\n"
            "        if not state.wish.report or not state.scored:\n"
            "            return None\n"
            "        mean = state.won / state.scored\n"
        ),
        (
            '            for won, layers in zip(feedback["won"], feedback["layers"].tolist(),'
            " strict=True):\n"
            "                if layers:\n"
            "                    state.scored += 1\n"
            "            # summed up when somebody asks: a step has no time for it\n"
            '            state.won = (state.won, feedback["won"], feedback["layers"])\n'
            "        return api.CONTINUE\n"
            "\n"
            "    def validate(self, state: State, token_ids: Sequence[int]) -> int:\n"
            "        return len(token_ids)  # what is drawn after them depends on tokens alone\n"
            "\n"
            "    def fork(self, state: State) -> State:\n"
            "        return state.copy()\n"
            "\n"
            "    def report(self, state: State) -> Mapping[str, Any] | None:\n"
            "        if not state.wish.report or not state.scored:\n"
            "            return None\n"
            "        total, chain = 0.0, state.won\n"
            "        while chain:\n"
            "            chain, won, layers = chain\n"
            "            total += sum(w / k for w, k in zip(won.tolist(), layers.tolist()) if k)\n"
            "        mean = total / state.scored\n"
        ),
        (
            "steps.py / modifier.py, LogitModifier: the arrays of batch and feedback are read-only,"
            " and the host may reuse them after the step: keep copies."
        ),
        first="modifier.keeps_copies",
    ),
    Mutant(
        "to-drafts-not-in-the-window",
        "tournament.Tournament",
        "self.take(ahead, drafts[j - 1])",
        "ahead.tail = (*ahead.tail, drafts[j - 1])[-self.operator.context :]",
        "modifier.py, prepare: The row after a draft is treated as if that draft were final.",
        reason=("Who hears feedback was not asked about drafts. It is now, for as many as its `validate` lets pass."),
        now="modifier.drafts_change_nothing",
    ),
    Mutant(
        "to-maximum-of-numpy",
        "tournament.Tournament",
        "factor = ops.where_rows(factor, entries, factor < 1e-9, 1e-9)",
        "factor = np.maximum(factor, 1e-9)",
        (
            "modifier.py, LogitTransform.arrays: Array libraries it calls directly; empty: only"
            " `Step.ops`, so it runs on every device."
        ),
        first="modifier.runs_on_every_device",
    ),
    Mutant(
        "to-loop-over-rows",
        "tournament.Tournament",
        "            won = won + g\n",
        (
            "            for i in range(m):\n"
            "                won = ops.where_rows(won, entries[i : i + 1], True, (won + g)[i : i + 1])\n"
        ),
        ("modifier.py, apply: No wait for the device, no loop over rows (writing/modifier.md: Do not loop over rows)."),
        first="modifier.loops_over_no_rows",
    ),
    Mutant(
        "to-noise-by-entry",
        "tournament.Tournament",
        'ops.uniform(arrays["seed"], zeros, zeros, PURPOSE + layer, width)',
        'ops.uniform(arrays["seed"], zeros, entries, PURPOSE + layer, width)',
        (
            "steps.py, Payload: A host may apply it in several calls on disjoint rows ... a"
            " transform must treat each entry on its own."
        ),
        first="modifier.any_partition_of_rows",
    ),
    Mutant(
        "to-report-of-numpy",
        "tournament.Tournament",
        'zip(feedback["won"].tolist(), feedback["layers"].tolist(), strict=True)',
        'zip(feedback["won"], feedback["layers"], strict=True)',
        "modifier.py, report: JSON (writing/modifier.md: convert NumPy numbers with `int(...)`).",
        first="modifier.replay_rebuilds_the_state",
    ),
    Mutant(
        "to-score-survives-in-the-modifier",
        "tournament.Tournament",
        ("            return None\n        mean = state.won / state.scored"),
        (
            "            return None\n"
            '        self.total = getattr(self, "total", 0.0) + state.won\n'
            '        self.tokens = getattr(self, "tokens", 0) + state.scored\n'
            "        mean = self.total / self.tokens"
        ),
        "modifier.py, report: A function of the state, as all else is.",
        first="modifier.replay_rebuilds_the_state",
    ),
    Mutant(
        "to-copy-has-a-shorter-window",
        "tournament.Tournament",
        "deque(self.lately), self.scored, self.won)",
        "deque(self.lately, maxlen=16), self.scored, self.won)",
        "contracts/modifier.md: A forked state is a copy: it gives what its parent gives.",
        reason="Forks were made early. They are made after 40 and 300 tokens now, too.",
        now="modifier.forks_go_on_as_their_parent",
    ),
)
