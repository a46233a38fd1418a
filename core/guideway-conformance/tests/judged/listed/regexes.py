"""Mistakes in `judged.plugins.regexes`: a strategy for a small part of regular expressions."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "small-rollback-zero",
        "regexes.Small",
        ("        if num_tokens > 0:\n            del self.path[-num_tokens:]"),
        "        del self.path[-num_tokens:]",
        "Rollback of 0 tokens is a no-op.",
        first="grammar.rollback_of_nothing_does_nothing",
    ),
    Mutant(
        "small-mask-by-state",
        "regexes.Small",
        ("            self.masks[state] = mask\n"),
        ("            self.compiled.__dict__.setdefault('legal', {})[state] = mask\n"),
        "None: it stores what is never read.",
        correct=True,
    ),
    Mutant(
        "small-shared-stop-masks",
        "regexes.Small",
        ("        self.masks: dict[int, Bitmask] = {}\n"),
        ("        self.masks: dict[int, Bitmask] = compiled.__dict__.setdefault('legal', {})\n"),
        "The stop tokens of one matcher are not those of another one of the same grammar.",
        first="grammar.stop_tokens_are_those_of_the_matcher",
    ),
    Mutant(
        "small-recycled-masks",
        "regexes.Small",
        ("        recycled.masks = {}\n"),
        "",
        "A matcher made after others were given back has the stop tokens it was asked for.",
        first="grammar.a_recycled_matcher_is_as_new",
    ),
    Mutant(
        "small-recycled-path",
        "regexes.Small",
        ("        recycled.path = [0]\n"),
        ("        recycled.path = recycled.path + [0]\n"),
        "A recycled matcher does not roll back into what another sequence accepted before.",
        reason=(
            "The check that sees it failed for the correct strategy too, which is past any use once it is "
            "rolled back past its start; it allows that now."
        ),
        now="grammar.a_recycled_matcher_has_no_past",
    ),
    Mutant(
        "small-recycled-twice",
        "regexes.Small",
        " and not any(matcher is other for other in self.pool):",
        ":",
        "None: a host gives a matcher back once.",
        correct=True,
    ),
    Mutant(
        "small-shared-path-of-forks",
        "regexes.Small",
        "return SmallMatcher(self.compiled, self.stop_token_ids, list(self.path))",
        "return SmallMatcher(self.compiled, self.stop_token_ids, self.path[-64:])",
        ("A fork rolls back like its matcher, also over tokens from before the fork (here no more than 63)."),
        reason="Forks were rolled back over few tokens; now over thousands too.",
        now="grammar.long_outputs_work",
    ),
    Mutant(
        "small-first-byte-tables",
        "regexes.Small",
        ("                    if after is not None:\n                        tokens[token_id] = after"),
        (
            "                    if after is not None and (self.edges[after] or self.final[after]):\n"
            "                        tokens[token_id] = after"
        ),
        "None: every state leads to an end.",
        correct=True,
    ),
    Mutant(
        "small-fill-skips-same",
        "regexes.Small",
        ("                matcher.fill_bitmask(bitmask, job.first_row)\n                state = matcher.path[-1]"),
        (
            "                key = (job.first_row, matcher.path[-1], id(bitmask))\n"
            "                if matcher.__dict__.get('filled') != key:\n"
            "                    matcher.fill_bitmask(bitmask, job.first_row)\n"
            "                matcher.__dict__['filled'] = key\n"
            "                state = matcher.path[-1]"
        ),
        "A fill writes every row it owes, also where nothing has changed since the last one.",
        first="grammar.what_a_fill_is_given_is_reused",
    ),
    Mutant(
        "small-fill-after-refusal",
        "regexes.Small",
        (
            "                    if state is None:\n"
            "                        break\n"
            "                    if state != OVER and not"
        ),
        (
            "                    if state is None:\n"
            "                        bitmask[job.first_row + accepted[i] + 1] = 0\n"
            "                        break\n"
            "                    if state != OVER and not"
        ),
        "Rows after the first refused draft stay untouched.",
        first="grammar.fill_stops_at_a_refused_draft",
    ),
    Mutant(
        "small-terminating-draft",
        "regexes.Small",
        (
            "                    accepted[i] += 1\n"
            "                    if state == OVER:\n"
            "                        break\n"
        ),
        (
            "                    if state == OVER:\n"
            "                        break\n"
            "                    accepted[i] += 1\n"
        ),
        "A draft that terminates counts as accepted.",
        first="grammar.fill_is_one_mask_after_another",
    ),
    Mutant(
        "small-eight-drafts",
        "regexes.Small",
        "                for token_id in job.draft_token_ids:",
        "                for token_id in job.draft_token_ids[:8]:",
        "A job may have 16 drafts.",
        first="grammar.sixteen_drafts_work",
    ),
    Mutant(
        "small-duplicate-bytes",
        "regexes.Small",
        (
            "        for token_id, token in enumerate(vocabulary.tokens):\n"
            "            if token and token_id not in vocabulary.special_tokens:"
        ),
        (
            "        seen: set[bytes] = set()\n"
            "        for token_id, token in enumerate(vocabulary.tokens):\n"
            "            if token in seen:\n"
            "                continue\n"
            "            seen.add(token)\n"
            "            if token and token_id not in vocabulary.special_tokens:"
        ),
        "Which tokens spell a text does not matter: two ids with the same bytes are both legal.",
        first="grammar.a_regex_allows_exactly_its_matches",
    ),
    Mutant(
        "small-special-as-text",
        "regexes.Small",
        "if token and token_id not in vocabulary.special_tokens:",
        "if token:",
        "None: a special token stands for no bytes, so it cannot be text.",
        correct=True,
    ),
    Mutant(
        "small-empty-special-by-vocabulary",
        "regexes.Small",
        ("        if token_id in self.stop_token_ids:\n            return OVER if"),
        (
            "        if token_id in self.compiled.vocabulary.stop_token_ids | self.stop_token_ids:\n"
            "            return OVER if"
        ),
        "A matcher's stop tokens are those it was given, and not the vocabulary's others.",
        first="grammar.stop_tokens_are_those_of_the_matcher",
    ),
    Mutant(
        "small-shared-loop-end",
        "regexes.Small",
        (
            "        lone = self.state()  # nothing comes back to the end of one repetition but by its own way\n"
            "        self.empty[end].append(lone)\n"
            "        return begin, lone"
        ),
        "        return begin, end",
        "None: atoms end in states of their own.",
        correct=True,
    ),
    Mutant(
        "small-range-open",
        "regexes.Small",
        "members = frozenset(range(low, high + 1))",
        "members = frozenset(range(low, high))",
        "A regex allows exactly the texts that match it as a whole.",
        first="grammar.a_regex_allows_exactly_its_matches",
    ),
    Mutant(
        "small-most-off-by-one",
        "regexes.Small",
        ("            for _ in range(most - least):\n                self.empty[last].append(final)"),
        ("            for _ in range(max(most - least, 1)):\n                self.empty[last].append(final)"),
        "A regex allows exactly the texts that match it as a whole ({2} is not {2,3}).",
        first="grammar.a_regex_allows_exactly_its_matches",
    ),
    Mutant(
        "small-choice-prefix",
        "regexes.Small",
        ("        final[state] = True\n    return edges, final"),
        ("        final[state] = not edges[state]\n    return edges, final"),
        "A choice allows exactly one of its strings (one that begins another, in the wrong order).",
        reason="Choices that begin others came first; now they come after them too.",
        now="grammar.a_choice_allows_exactly_its_strings",
    ),
    Mutant(
        "small-choice-folded",
        "regexes.Small",
        "        for byte in choice.encode():",
        ("        import unicodedata\n\n        for byte in unicodedata.normalize('NFC', choice).encode():"),
        "Constraints that differ in the form of an accent are different.",
        first="grammar.near_constraints_do_not_collide",
    ),
    Mutant(
        "small-compile-cache",
        "regexes.Small",
        ("        source = constraint.source()\n"),
        (
            "        source = constraint.source()\n"
            "        known = self.__dict__.setdefault('known', {})\n"
            "        if source in known and not isinstance(constraint, Choice):\n"
            "            return known[source]\n"
            "        if not isinstance(constraint, Choice):\n"
            "            parser = Parser(source)\n"
            "            known[source] = CompiledSmall(self, determined(parser, *parser.parse()))\n"
            "            return known[source]\n"
        ),
        "A compiled grammar that nobody holds any more is freed.",
        first="grammar.released_grammars_are_freed",
    ),
    Mutant(
        "small-parser-shared",
        "regexes.Small",
        ("        parser = Parser(source)\n        return CompiledSmall"),
        (
            "        self.parser = Parser(source)\n"
            "        parser = self.parser\n"
            "        ends = self.parser.parse()\n"
            "        return CompiledSmall(self, determined(self.parser, *ends))\n"
            "        return CompiledSmall"
        ),
        "Compiling in several threads at once gives what compiling alone gives.",
        first="grammar.compile_is_thread_safe",
    ),
    Mutant(
        "small-table-race",
        "regexes.Small",
        ("            tokens: dict[int, int] = {}\n            for byte in self.edges[state]:"),
        ("            tokens = self.scratch = {}\n            for byte in self.edges[state]:"),
        "None: the name is shared, the dict is each call's own.",
        correct=True,
    ),
    Mutant(
        "small-scratch-mask",
        "regexes.Small",
        ("        mask = np.zeros(self.words, dtype=np.uint32)\n"),
        (
            "        mask = self.__dict__.setdefault('scratch', np.zeros(self.words, dtype=np.uint32))\n"
            "        mask[:] = 0\n"
        ),
        "Bit t is set exactly if accept([t]) is 1: masks do not share memory.",
        first="grammar.accept_keeps_what_precedes_a_refused_token",
    ),
    Mutant(
        "small-forced-of-prefix",
        "regexes.Small",
        ("        if edges[state] or not text:\n            return ()\n"),
        ("        if not text:\n            return ()\n"),
        ("Forced tokens are the first of those the tokenizer would write, where one text alone is possible."),
        reason=(
            "Forced tokens were compared with the tokenizer's where one text alone is possible; now also "
            "where several begin alike."
        ),
        now="grammar.forced_tokens_are_the_tokenizers",
    ),
    Mutant(
        "small-forced-past-end",
        "regexes.Small",
        "while len(edges[state]) == 1 and not final[state] and len(text) < 1000:",
        "while len(edges[state]) == 1 and len(text) < 1000:",
        "Forced tokens are the only way: where the output may end they are not.",
        first="grammar.forced_tokens_are_the_only_way",
    ),
    Mutant(
        "small-completion-limit",
        "regexes.Small",
        ("        for _ in range(limit):\n            further"),
        ("        for _ in range(limit + 1):\n            further"),
        "A completion has at most limit tokens, a stop token last.",
        first="grammar.a_completion_completes",
    ),
    Mutant(
        "small-completion-short",
        "regexes.Small",
        ("        for _ in range(limit):\n            further"),
        ("        for _ in range(limit - 1):\n            further"),
        "shortest_completion returns None only if no completion is as short as limit.",
        first="grammar.a_completion_is_found_if_there_is_one",
    ),
    Mutant(
        "small-bytes-lose-final",
        "regexes.Small",
        "return json.dumps([self.edges, self.final]).encode()",
        "return json.dumps([self.edges, [not row for row in self.edges]]).encode()",
        "from_bytes turns what to_bytes wrote into an equal grammar.",
        first="grammar.a_serialized_grammar_is_the_same",
    ),
    Mutant(
        "small-nbytes-of-start",
        "regexes.Small",
        "        return edges + 40 * len(self.final) + tables + 1000",
        "        return 4096 + len(self.final)",
        "The nbytes of a grammar is at least an eighth of the memory that it takes.",
        reason=(
            "The constraints were so small that a light strategy stayed below what is judged; there are "
            "larger ones now."
        ),
        now="grammar.nbytes_is_near_what_is_held",
    ),
    Mutant(
        "small-validate-moves-on-stop",
        "regexes.Small",
        (
            "            after = self.after(state, token_id)\n"
            "            if after is None:\n"
            "                return count\n"
            "            state = after\n"
            "        return len(token_ids)"
        ),
        (
            "            after = self.after(state, token_id)\n"
            "            if after is None or after == OVER:\n"
            "                return count\n"
            "            state = after\n"
            "        return len(token_ids)"
        ),
        "validate counts as accept does, over a stop token too.",
        first="grammar.validate_counts_as_accept_does",
    ),
    Mutant(
        "small-dead-end-blank",
        "regexes.Small",
        ("        if not mask.any():\n            raise DeadEnd"),
        ("        bitmask[row] = 0\n        if not mask.any():\n            raise DeadEnd"),
        "Filling raises DeadEnd and leaves the row untouched.",
        first="grammar.a_dead_end_is_raised",
    ),
    Mutant(
        "small-keeps-strategy-alive-by-weakref",
        "regexes.Small",
        ("        self.vocabulary, self.by_first = strategy.vocabulary, strategy.by_first\n"),
        (
            "        import weakref\n"
            "\n"
            "        self.vocabulary, self.made_by = strategy.vocabulary, weakref.ref(strategy)\n"
            "        self.by_first = strategy.by_first if len(strategy.by_first) < 2 else type('Lazy', (), "
            "{'get': lambda s, byte, other: self.made_by().by_first.get(byte, other)})()\n"
        ),
        "A matcher, and its forks, go on when the host has let go of their grammar and their strategy.",
        first="grammar.closing_ends_one_strategy",
    ),
)
