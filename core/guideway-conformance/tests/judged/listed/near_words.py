"""Mistakes in `judged.plugins.near_words`: words that are nearly a given one."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "near-misspelled-options-pass",
        "near_words.Near",
        '        self.options = parse_options(Options, options, where="grammar.near")\n',
        (
            "        self.options = parse_options(Options, {k: options[k] for k in "
            '("masks",) if k in options}, where="grammar.near")\n'
        ),
        (
            "guideway.api.grammar.GrammarStrategy: `options` are the operator's, as written "
            "in the configuration; `parse_options` checks them. Raises "
            "`InvalidConfiguration` for options ... it cannot work with."
        ),
        reason=(
            "An unknown option that passed was left alone; now the contract says what of a "
            "strategy that looks at its options."
        ),
        now="grammar.the_constructor_raises_its_error_only",
    ),
    Mutant(
        "near-nbytes-without-lock",
        "near_words.Near",
        ("    def nbytes(self) -> int:\n        with self.lock:\n"),
        ("    def nbytes(self) -> int:\n        if True:\n"),
        (
            "contracts/grammar.md: Threads may use the matchers of one compiled grammar, "
            "each its own, at once, and ask for its nbytes."
        ),
        first="grammar.a_compiled_grammar_is_shared_by_threads",
    ),
    Mutant(
        "near-word-normalized",
        "near_words.Near",
        '        edits, space, word = constraint.source().partition(" ")\n',
        (
            '        edits, space, word = __import__("unicodedata").normalize("NFC", '
            'constraint.source()).partition(" ")\n'
        ),
        (
            "guideway.api.grammar.GrammarStrategy.compile: Constraints are the same only if "
            "they are so to the last character: case, white space and the form of an accent count."
        ),
        reason="Forms of an accent were compared in known kinds alone.",
        now="grammar.forms_of_an_accent_are_told_apart",
    ),
    Mutant(
        "near-shortest-gives-up-one-early",
        "near_words.Near",
        ("            if length == limit:\n                return None\n            length += 1\n"),
        ("            length += 1\n            if length >= limit:\n                return None\n"),
        (
            "guideway.api.grammar.Matcher.shortest_completion: At most `limit` token ids, a "
            "stop token last, that complete the output from here; None if there are none so short."
        ),
        first="grammar.a_completion_is_found_if_there_is_one",
    ),
    Mutant(
        "near-nothing-counted-after-the-end",
        "near_words.Near",
        ("            if self.is_terminated():\n                return count\n"),
        ("            if self.is_terminated():\n                return 0\n"),
        (
            "guideway.api.grammar.Matcher.accept: Advance over `token_ids` up to the first "
            "one that is not legal, keep those before it, and return their count."
        ),
        first="grammar.termination_is_the_end",
    ),
    Mutant(
        "near-fork-forgets-the-way",
        "near_words.Near",
        "        return NearMatcher(self.compiled, self.stops, self.path.copy())\n",
        "        return NearMatcher(self.compiled, self.stops, self.path[-1:])\n",
        (
            "contracts/grammar.md: A fork rolls back like its matcher, also over tokens from "
            "before the fork, and neither moves the other."
        ),
        first="grammar.all_that_is_declared_can_be_rolled_back",
    ),
    Mutant(
        "near-dead-end-clears-the-row",
        "near_words.Near",
        (
            "        if not stops and not mask.any():\n"
            '            raise DeadEnd(f"no token of the vocabulary leads on to {self.compiled.word!r}")\n'
            "        bitmask[row] = 0\n"
            "        bitmask[row, : len(mask)] = mask\n"
        ),
        (
            "        bitmask[row] = 0\n"
            "        bitmask[row, : len(mask)] = mask\n"
            "        if not stops and not mask.any():\n"
            '            raise DeadEnd(f"no token of the vocabulary leads on to {self.compiled.word!r}")\n'
        ),
        (
            "guideway.api.grammar.Matcher.fill_bitmask: Raises `DeadEnd`, leaving the row "
            "untouched, if no token is legal."
        ),
        reason="Dead ends were known of regexes, choices and schemas alone; now outputs of examples lead to some.",
        now="grammar.a_dead_end_is_raised",
    ),
    Mutant(
        "near-shortest-has-a-time-limit",
        "near_words.Near",
        "        while level:\n",
        (
            "        import time\n"
            "\n"
            "        until = time.monotonic() + 0.02\n"
            "        while level:\n"
            "            if time.monotonic() > until:\n"
            "                return None  # closing an answer must not hold up the step\n"
        ),
        (
            "guideway.api.grammar.Matcher: Every answer is a function of constraint, stop "
            "tokens and accepted tokens alone. / shortest_completion: None if there are none so short."
        ),
        reason="The clock moved between calls, and not while one went on; completions were not asked for.",
        now="grammar.the_clock_is_nothing",
    ),
    Mutant(
        "near-scratch-row-shared-by-threads",
        "near_words.Near",
        (
            "        row, leaps = np.zeros(num_words(self.words.size), dtype=np.uint32), {}\n"
            "        stack = [(place, self.words.tree)]\n"
            "        while stack:\n"
            "            at, tree = stack.pop()\n"
            "            for byte, (ids, below) in tree.items():\n"
            "                following = self.step(at, byte)\n"
            "                if following is None:\n"
            "                    continue\n"
            "                for token_id in ids:\n"
            "                    row[token_id // 32] |= np.uint32(1 << token_id % 32)\n"
            "                    leaps[following] = min(token_id, leaps.get(following, token_id))\n"
            "                if below:\n"
            "                    stack.append((following, below))\n"
        ),
        (
            '        scratch = vars(self).setdefault("scratch", '
            "np.zeros(num_words(self.words.size), dtype=np.uint32))\n"
            "        scratch[:] = 0\n"
            "        leaps = {}\n"
            "        stack = [(place, self.words.tree)]\n"
            "        while stack:\n"
            "            at, tree = stack.pop()\n"
            "            for byte, (ids, below) in tree.items():\n"
            "                following = self.step(at, byte)\n"
            "                if following is None:\n"
            "                    continue\n"
            "                for token_id in ids:\n"
            "                    scratch[token_id // 32] |= np.uint32(1 << token_id % 32)\n"
            "                    leaps[following] = min(token_id, leaps.get(following, token_id))\n"
            "                if below:\n"
            "                    stack.append((following, below))\n"
            "        row = scratch.copy()\n"
        ),
        (
            "guideway.api.grammar.CompiledGrammar: a factory of matchers, shared by all "
            "sequences and threads that use it. / contracts/grammar.md: Threads may use the "
            "matchers of one compiled grammar, each its own, at once."
        ),
        first="grammar.a_compiled_grammar_is_shared_by_threads",
    ),
)
