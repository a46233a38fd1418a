"""Mistakes in `judged.plugins.brackets`: a strategy for a dialect of its own, which fills in threads."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "brackets-masks-are-kept-without-the-room",
        "brackets.Brackets",
        "key: Any = (*closers, room)",
        "key: Any = tuple(closers)",
        "bit t is set exactly if ``accept([t]) == 1``.",
        first="grammar.vocabularies_of_any_size_work",
    ),
    Mutant(
        "brackets-rows-in-the-order-of-jobs",
        "brackets.Brackets",
        ("accepted[i] = job.matcher.fill(job.draft_token_ids, bitmask, job.first_row)  # type: ignore[attr-defined]"),
        (
            "row = jobs[0].first_row + sum(1 + len(each.draft_token_ids) for each in jobs[:i])\n"
            "                    accepted[i] = job.matcher.fill(job.draft_token_ids, bitmask, row)  # "
            "type: ignore[attr-defined]"
        ),
        "Each job's rows are where its `first_row` says, in whichever order the jobs come.",
        first="grammar.fill_is_one_mask_after_another",
    ),
    Mutant(
        "brackets-the-pool-is-not-waited-for",
        "brackets.Brackets",
        "list(self._pool.map(work, range(THREADS)))",
        "self._pool.map(work, range(THREADS))",
        "neither the list, its jobs nor the bitmask are looked at once it has returned.",
        first="grammar.batches_of_many_jobs_work",
    ),
    Mutant(
        "brackets-as-many-parts-as-processors",
        "brackets.Brackets",
        "list(self._pool.map(work, range(THREADS)))",
        "list(self._pool.map(work, range(min(THREADS, os.cpu_count() or 1))))",
        "A fill of hundreds of jobs gives each the masks it gets alone, and counts its drafts.",
        first="grammar.batches_of_many_jobs_work",
    ),
    Mutant(
        "brackets-one-pool-for-all-strategies",
        "brackets.Brackets",
        (
            "            if self._pool is None:  # made late: threads do not survive a fork of the process\n"
            "                self._pool = ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "
            'thread_name_prefix="brackets")\n'
            "            list(self._pool.map(work, range(THREADS)))\n"
            "        return accepted\n"
            "\n"
            "    def close(self) -> None:\n"
            "        if self._pool is not None:\n"
            "            self._pool.shutdown(wait=True)\n"
            "            self._pool = None\n"
        ),
        (
            "            if Brackets._shared is None:  # made late: threads do not survive a fork of the "
            "process\n"
            "                Brackets._shared = ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "
            'thread_name_prefix="brackets")\n'
            "            list(Brackets._shared.map(work, range(THREADS)))\n"
            "        return accepted\n"
            "\n"
            "    _shared: ThreadPoolExecutor | None = None\n"
            "\n"
            "    def close(self) -> None:\n"
            "        if Brackets._shared is not None:\n"
            "            Brackets._shared.shutdown(wait=True)\n"
        ),
        "A strategy closes without an error, used or unused, and others of its class go on.",
        reason="No batch was filled after another strategy was closed.",
        now="grammar.closing_ends_one_strategy",
    ),
    Mutant(
        "brackets-bytes-with-single-spaces",
        "brackets.Brackets",
        "return self.text.encode()",
        'return " ".join(self.text.split()).encode()',
        ("from_bytes of another strategy for an equal vocabulary turns what to_bytes wrote into an equal grammar."),
        first="grammar.a_serialized_grammar_goes_to_other_processes",
    ),
    Mutant(
        "brackets-a-draft-that-terminates-is-refused",
        "brackets.Brackets",
        ("            if further is OVER:\n                return count + 1\n"),
        ("            if further is OVER:\n                return count\n"),
        "A draft that terminates counts as accepted, and the rows after it stay untouched.",
        first="grammar.fill_is_one_mask_after_another",
    ),
    Mutant(
        "brackets-tokens-are-at-most-four-long",
        "brackets.Brackets",
        "while seen.depth and len(closers) < self.longest:",
        "while seen.depth and len(closers) < 4:",
        "bit t is set exactly if ``accept([t]) == 1``.",
        reason="No token of the vocabulary closed more than two brackets.",
        now="grammar.tokens_over_many_levels_work",
    ),
    Mutant(
        "brackets-a-row-is-not-written-twice",
        "brackets.Brackets",
        ("        target = bitmask[row].view(np.uint32)\n        target[: len(legal)] = legal\n"),
        (
            "        target = bitmask[row].view(np.uint32)\n"
            '        if getattr(self, "wrote", None) == (id(bitmask), row, id(legal)):\n'
            "            return\n"
            "        self.wrote = (id(bitmask), row, id(legal))\n"
            "        target[: len(legal)] = legal\n"
        ),
        "a fill writes every row it owes, though it wrote the same one before.",
        first="grammar.strategies_are_independent",
    ),
    Mutant(
        "brackets-an-output-begins-again",
        "brackets.Brackets",
        "        return None if level is OVER else self.compiled.after(level, token_id)\n",
        "        return self.compiled.after(level, token_id)\n",
        "A matcher is terminated once a stop token was accepted, not before, and accepts nothing more.",
        first="grammar.termination_is_the_end",
    ),
    Mutant(
        "brackets-matchers-borrow-their-grammar",
        "brackets.Brackets",
        "return BracketMatcher(self, stop_token_ids, [BEGIN])",
        'return BracketMatcher(__import__("weakref").proxy(self), stop_token_ids, [BEGIN])',
        (
            "A matcher keeps what it needs: the host may let go of its grammar and its strategy, without "
            "closing it, while the matcher lives."
        ),
        first="grammar.a_matcher_outlives_what_made_it",
    ),
    Mutant(
        "brackets-accept-takes-all-or-nothing",
        "brackets.Brackets",
        (
            "        for count, token_id in enumerate(token_ids):\n"
            "            level = self.after(self.path[-1], token_id)\n"
            "            if level is None:\n"
            "                return count\n"
            "            self.path.append(level)\n"
            "        return len(token_ids)\n"
        ),
        (
            "        path = self.path.copy()\n"
            "        for count, token_id in enumerate(token_ids):\n"
            "            level = self.after(path[-1], token_id)\n"
            "            if level is None:\n"
            "                return count\n"
            "            path.append(level)\n"
            "        self.path = path\n"
            "        return len(token_ids)\n"
        ),
        "Accept stops at the first token that is not legal, keeps those before it and returns their count.",
        first="grammar.accept_keeps_what_precedes_a_refused_token",
    ),
    Mutant(
        "brackets-nbytes-is-a-float",
        "brackets.Brackets",
        "rows * (256 + 4 * num_words(self.size))",
        "rows * (256 + self.size / 8)",
        "A compiled grammar's nbytes is the memory it holds, a positive int.",
        first="grammar.nbytes_is_a_number_of_bytes",
    ),
)
