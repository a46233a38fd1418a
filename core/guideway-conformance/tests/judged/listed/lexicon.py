"""Mistakes in `judged.plugins.lexicon`: words that are steered to."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "lx-key-without-order",
        "lexicon.Lexicon",
        "        return self.wish(request).words\n",
        "        return tuple(sorted(self.wish(request).words))\n",
        (
            "contracts/modifier.md: Either of two requests with equal `compile_key`s may be given"
            " what was compiled for the other."
        ),
        reason="Rows were compared, and no reports. They are now.",
        now="modifier.equal_keys_mean_equal_values",
    ),
    Mutant(
        "lx-one-scratch-list",
        "lexicon.Lexicon",
        ("        found = []\n        for said"),
        ('        found = self.__dict__.setdefault("scratch", [])\n        found.clear()\n        for said'),
        "modifier.py, compile: from several threads at once.",
        first="modifier.compile_serves_several_threads",
    ),
    Mutant(
        "lx-fork-shares-said",
        "lexicon.Lexicon",
        ("    def fork(self, state: State) -> State:\n        return state.copy()"),
        (
            "    def fork(self, state: State) -> State:\n"
            "        return State(state.wish, state.plan, state.progress[:], state.said)"
        ),
        "modifier.py, fork: An independent copy of `state`.",
        first="modifier.forks_are_independent",
    ),
    Mutant(
        "lx-validate-moves",
        "lexicon.Lexicon",
        ("        ahead = state.copy()\n        for passed"),
        ("        ahead = state\n        for passed"),
        "modifier.py, validate: the state does not move.",
        first="modifier.validate_moves_nothing",
    ),
    Mutant(
        "lx-unenforced-is-a-string",
        "lexicon.Lexicon",
        'return tuple(f"lexicon: {word}" for word in state.plan.unspellable)',
        'return ", ".join(f"lexicon: {word}" for word in state.plan.unspellable)',
        (
            "modifier.py, unenforced: Names of what was asked for this sequence and will not be"
            " enforced -> Sequence[str]."
        ),
        reason="Nothing called `unenforced`. A check does now.",
        now="modifier.unenforced_gives_names",
    ),
    Mutant(
        "lx-nan-passes",
        "lexicon.Lexicon",
        "if not abs(getattr(wish, field)) <= self.operator.max_strength:",
        "if abs(getattr(wish, field)) > self.operator.max_strength:",
        "contracts/modifier.md: Results are logits, or log-probabilities: numbers or -inf, no NaN.",
        reason="A value that no example has. Values of the types that options are read as come now.",
        now="modifier.options_near_its_examples_are_served",
    ),
    Mutant(
        "lx-no-outcome",
        "lexicon.Lexicon",
        "return api.FINISH if state.is_over() else api.CONTINUE",
        "return api.FINISH if state.is_over() else None",
        "contracts/modifier.md: `accept` answers the final tokens of a step with an Outcome.",
        first="modifier.takes_a_step",
    ),
    Mutant(
        "lx-list-of-the-living",
        "lexicon.Lexicon",
        "        return State(wish, compiled, [0] * len(wish.words), [0] * len(wish.words))",
        (
            "        state = State(wish, compiled, [0] * len(wish.words), [0] * len(wish.words))\n"
            '        self.__dict__.setdefault("states", []).append(state)\n'
            "        return state"
        ),
        (
            "contracts/modifier.md: After `release` nothing of the sequence is left: neither its"
            " state nor what was noted beside it."
        ),
        first="modifier.released_states_are_freed",
    ),
    Mutant(
        "lx-asks-for-the-grammar",
        "lexicon.Lexicon",
        "        words = self.wish(request).words\n",
        (
            "        words = self.wish(request).words\n"
            "        if grammar is not None:  # in JSON a word stands in quotes\n"
            '            words = tuple(word.strip(" \\"\'") or word for word in words)\n'
        ),
        (
            "modifier.py, compile: a function of the request and of this modifier's options alone."
            " `grammar` is ... None where it has none or this process does not hold it."
        ),
        reason="No grammar was given. One is now, and texts in quotes.",
        now="modifier.compile_needs_no_grammar",
    ),
    Mutant(
        "lx-entries-tiled",
        "lexicon.Lexicon",
        "entries = ops.asarray(np.repeat(np.arange(m, dtype=np.int32), WIDTH))",
        "entries = ops.asarray(np.tile(np.arange(m, dtype=np.int32), WIDTH))",
        "contracts/modifier.md: A row gets the same whatever other rows are in its batch.",
        first="modifier.any_partition_of_rows",
    ),
    Mutant(
        "lx-words-of-every-instance",
        "lexicon.Lexicon",
        "self.known: dict[bytes, tuple[tuple[int, ...], ...]] = {}",
        'self.known: dict[bytes, tuple[tuple[int, ...], ...]] = globals().setdefault("KNOWN", {})',
        (
            "modifier.py, compile: a function of the request and of this modifier's options alone"
            " (contracts/modifier.md: whatever was compiled before, and wherever)."
        ),
        reason="A process had instances of one vocabulary. Another process has two now.",
        now="modifier.any_vocabulary_beside_another",
    ),
    Mutant(
        "lx-pool-stays",
        "lexicon.Lexicon",
        "        tokens = tuple(self.look_up(text) for text in texts)\n",
        (
            '        if not hasattr(self, "pool"):\n'
            "            from concurrent.futures import ThreadPoolExecutor\n"
            "\n"
            "            self.pool = ThreadPoolExecutor(2)\n"
            "        tokens = tuple(self.pool.map(self.look_up, texts))\n"
        ),
        "contracts/modifier.md: When a modifier and its transform are closed, their threads end.",
        first="modifier.closing_ends_threads_and_files_of_a_modifier",
    ),
    Mutant(
        "lx-report-with-words",
        "lexicon.Lexicon",
        'return {"said": list(state.said),',
        'return {"said": dict(zip((w.decode() for w in state.plan.words), state.said)),',
        "modifier.py, report: JSON, at most 4 KiB of it.",
        reason="A value that no example has: outside what docs/conformance.md promises (Other options).",
        survives=True,
    ),
    Mutant(
        "lx-begins-amid-drafts",
        "lexicon.Lexicon",
        "batch.drafts(i)[j - 1]",
        "batch.draft_token_ids[batch.row_start[i] + j - 1]",
        (
            "steps.py, StepBatch: Sequence ``i`` owns rows row_start[i] up to row_start[i + 1] and"
            " has one draft fewer than rows (drafts: `draft_token_ids[row_start[i] - i : ...]`)."
        ),
        first="modifier.keeps_copies",
    ),
)
