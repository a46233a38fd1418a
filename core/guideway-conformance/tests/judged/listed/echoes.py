"""Mistakes in `judged.plugins.echoes`: forms that repeat their blanks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "echo-dead-draft-counts",
        "echoes.Echo",
        (
            "            if not ahead.is_terminated():\n"
            "                try:\n"
            "                    ahead.fill_bitmask(bitmask, job.first_row + accepted + 1)\n"
            "                except DeadEnd:\n"
            "                    break\n"
            "            accepted += 1\n"
            "            if ahead.is_terminated():\n"
        ),
        (
            "            accepted += 1\n"
            "            if ahead.is_terminated():\n"
            "                break\n"
            "            try:\n"
            "                ahead.fill_bitmask(bitmask, job.first_row + accepted)\n"
            "            except DeadEnd:\n"
        ),
        (
            "guideway.api.grammar.GrammarStrategy.fill: Rows after the first refused draft, "
            "after a draft that terminates and after one that leads to a dead end (it counts "
            "as refused) stay untouched."
        ),
        reason="Dead ends were known of regexes, choices and schemas alone.",
        now="grammar.a_draft_into_a_dead_end_is_refused",
    ),
    Mutant(
        "echo-large-batches-count-in-int64",
        "echoes.Echo",
        (
            "        return np.fromiter(pool.map(lambda job: fill_one(job, bitmask), jobs), "
            "dtype=np.int32, count=len(jobs))\n"
        ),
        (
            "        return np.fromiter(pool.map(lambda job: fill_one(job, bitmask), jobs), "
            "dtype=int, count=len(jobs))\n"
        ),
        "guideway.api.grammar.GrammarStrategy.fill: Fill the rows of every job; ``int32[len(jobs)]``.",
        reason="The form of the result was looked at where few jobs were filled; now wherever a check fills.",
        now="grammar.batches_of_many_jobs_work",
    ),
    Mutant(
        "echo-other-errors-go-through",
        "echoes.Echo",
        ("    except BaseException as error:\n        contain(error)\n"),
        "    except DeadEnd as error:\n",
        (
            "guideway.api.grammar.GrammarStrategy.fill: or -1 if its matcher failed "
            "(`FillJob.error` says why), which leaves all other jobs' rows correct."
        ),
        first="grammar.a_failed_job_fails_alone",
    ),
    Mutant(
        "echo-drafts-push-out-the-past",
        "echoes.Echo",
        (
            "        ahead = job.matcher.fork()\n"
            "        for token_id in job.draft_token_ids:\n"
            "            if not ahead.accept((token_id,)):\n"
            "                break\n"
            "            if not ahead.is_terminated():\n"
            "                try:\n"
            "                    ahead.fill_bitmask(bitmask, job.first_row + accepted + 1)\n"
            "                except DeadEnd:\n"
            "                    break\n"
            "            accepted += 1\n"
            "            if ahead.is_terminated():\n"
            "                break\n"
        ),
        (
            "        ahead, taken = job.matcher, 0\n"
            "        try:\n"
            "            for token_id in job.draft_token_ids:\n"
            "                if not ahead.accept((token_id,)):\n"
            "                    break\n"
            "                taken += 1\n"
            "                if not ahead.is_terminated():\n"
            "                    try:\n"
            "                        ahead.fill_bitmask(bitmask, job.first_row + accepted + 1)\n"
            "                    except DeadEnd:\n"
            "                        break\n"
            "                accepted += 1\n"
            "                if ahead.is_terminated():\n"
            "                    break\n"
            "        finally:\n"
            "            ahead.rollback(taken)\n"
        ),
        (
            "contracts/grammar.md: A matcher rolls back as many tokens as `max_rollback` "
            "says, ..., whether or not a fill with drafts came last, and so do its forks."
        ),
        reason=(
            "A draft that a fill accepts and undoes counts as any other token: the base "
            "class's fill does the same. Hosts count, and replay what is not there any more; "
            "guideway's did not, and does now."
        ),
        correct=True,
    ),
    Mutant(
        "echo-close-leaves-the-threads",
        "echoes.Echo",
        (
            "        with self.lock:\n"
            "            pool, self.pool = self.pool, None\n"
            "        if pool is not None:\n"
            "            pool.shutdown(wait=True)\n"
        ),
        "        self.words.tree.clear()  # the threads of the pool end with it\n",
        (
            "contracts/grammar.md: When a strategy is closed, its threads end and its files "
            "are closed, though somebody still holds it."
        ),
        reason="No large batch was filled before close.",
        now="grammar.closing_ends_threads_and_files",
    ),
    Mutant(
        "echo-forced-up-to-the-very-end",
        "echoes.Echo",
        (
            "            length = sum(len(words.tokens[token_id]) for token_id in tokens)\n"
            "            while tokens and length > len(text) - words.longest:\n"
            "                length -= len(words.tokens[tokens.pop()])\n"
        ),
        "",
        (
            "contracts/grammar.md: Forced tokens are the first of those the tokenizer would "
            "write, whatever the output becomes: where one text alone is possible, and where "
            "several begin alike."
        ),
        reason=(
            "No token of the suite's vocabulary joins a literal's end with two letters "
            "behind it and none with one; now tokens run over all borders of outputs."
        ),
        now="grammar.forced_tokens_are_the_tokenizers",
    ),
    Mutant(
        "echo-bytes-are-stripped",
        "echoes.Echo",
        "        return self.text.encode()\n",
        "        return self.text.strip().encode()\n",
        (
            "contracts/grammar.md: from_bytes of another strategy for an equal vocabulary "
            "turns what to_bytes wrote into an equal grammar."
        ),
        reason="No example has white space at its ends; now the suite adds some.",
        now="grammar.constraints_that_live_together_are_told_apart",
    ),
    Mutant(
        "echo-what-it-cannot-is-called-invalid",
        "echoes.Echo",
        (
            '            raise UnsupportedGrammar("echo cannot tell where a blank ends '
            'before its kind", feature="adjacent blanks")\n'
        ),
        '            raise InvalidGrammar("nobody can tell where a blank ends before its own kind")\n',
        (
            "writing/grammar.md: It raises only `InvalidGrammar` (the constraint is wrong "
            "for every strategy) or `UnsupportedGrammar` (this strategy cannot serve it)."
        ),
        reason="Whether a text in a dialect of its own is malformed for every strategy is known to its author alone.",
        survives=True,
    ),
    Mutant(
        "echo-words-shared-by-tokens-alone",
        "echoes.Echo",
        "        self.words = Words(vocabulary)\n",
        (
            '        known = globals().setdefault("KNOWN", {})\n'
            "        if vocabulary.tokens not in known:\n"
            "            known[vocabulary.tokens] = Words(vocabulary)\n"
            "        self.words = known[vocabulary.tokens]\n"
        ),
        (
            "contracts/grammar.md: Strategies for several vocabularies work side by side, "
            "each with its own: the same tokens under other ids, other stop tokens, another tokenizer."
        ),
        reason="Of a dialect the first example alone was tried beside another tokenizer, and little of it is forced.",
        now="grammar.strategies_of_other_vocabularies_are_independent",
    ),
)
