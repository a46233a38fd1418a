"""Mistakes in `judged.plugins.tag_markup`: nested tags, a dialect."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "tags-completion-off-by-one",
        "tag_markup.Markup",
        ("        for _ in range(limit):\n"),
        ("        for _ in range(limit - 1):\n"),
        "C: Shortest_completion returns None only if no completion is as short as `limit`.",
        reason=(
            "The shortest completion was searched by trying all texts, which takes too long for a "
            "dialect; now the limit is what a completion, or the rest of an output, needs."
        ),
        now="grammar.a_completion_is_found_if_there_is_one",
    ),
    Mutant(
        "tags-forces-the-open-tag",
        "tag_markup.Markup",
        ('                return b""\n'),
        ("                return rest\n"),
        (
            "C: Forced tokens are the first of those the tokenizer would write for the rest of the "
            "output, whatever it becomes: where one text alone is possible, and where several begin alike."
        ),
        first="grammar.forced_tokens_are_the_tokenizers",
    ),
    Mutant(
        "tags-fork-has-no-past",
        "tag_markup.Markup",
        ("        return MarkupMatcher(self.compiled, self.stop_token_ids, self.states.copy())\n"),
        ("        return MarkupMatcher(self.compiled, self.stop_token_ids, deque(self.states, len(self.states)))\n"),
        (
            "C: A matcher rolls back as many tokens as `max_rollback` says, at once or in parts, "
            "however many it accepted before, ..., and so do its forks."
        ),
        first="grammar.any_order_of_calls_is_replay",
    ),
    Mutant(
        "tags-history-off-by-one",
        "tag_markup.Markup",
        'deque([((), b"")], BACK + 1)',
        'deque([((), b"")], BACK)',
        (
            "G, max_rollback: The number of tokens that its matchers can roll back. C: A matcher rolls "
            "back as many tokens as `max_rollback` says, at once or in parts, however many it accepted before."
        ),
        first="grammar.all_that_is_declared_can_be_rolled_back",
    ),
    Mutant(
        "tags-learnt-without-depth",
        "tag_markup.Markup",
        ("        self.learnt: dict[State, dict[State, tuple[int, ...]]] = {}\n"),
        (
            "        import weakref\n"
            "\n"
            '        kept = vars(vocabulary).setdefault("markup", weakref.WeakValueDictionary())\n'
            '        self.learnt = kept.setdefault(names, type("Learnt", (dict,), {})())\n'
        ),
        (
            "C: Two strategies, and two compiled grammars, do not share what their matchers accept, "
            "and give equal masks. / Constraints that differ in one place ... are what they are alone "
            "when compiled before, after and beside each other, all of them alive."
        ),
        reason=(
            "No two constraints that differed in a number lived together, and walks were short; now "
            "outputs of the examples are followed."
        ),
        now="grammar.constraints_that_live_together_are_told_apart",
    ),
    Mutant(
        "tags-names-in-lower-case",
        "tag_markup.Markup",
        ('        names = match[1].encode().split(b" ")\n'),
        ('        names = match[1].lower().encode().split(b" ")\n'),
        (
            "G, compile: Constraints are the same only if they are so to the last character: case, "
            "white space and the form of an accent count."
        ),
        reason="Letters were compared with accents, and not with capitals.",
        now="grammar.cases_of_a_letter_are_told_apart",
    ),
    Mutant(
        "tags-ids-without-bytes",
        "tag_markup.Markup",
        ("        if token_id in vocabulary.special_tokens or not vocabulary.tokens[token_id]:\n"),
        ("        if token_id in vocabulary.special_tokens:\n"),
        (
            "W: No other token without bytes is ever legal. C: A grammar never produces a special "
            "token, or an id without bytes, as text."
        ),
        first="grammar.bits_are_what_accept_takes",
    ),
    Mutant(
        "tags-row-written-at-dead-end",
        "tag_markup.Markup",
        (
            "        if not legal:\n"
            '            raise DeadEnd("no token of the vocabulary goes on with the markup")\n'
            "        allow_only(bitmask, row, legal)\n"
        ),
        (
            "        allow_only(bitmask, row, legal)\n"
            "        if not legal:\n"
            '            raise DeadEnd("no token of the vocabulary goes on with the markup")\n'
        ),
        "G, fill_bitmask: Raises `DeadEnd`, leaving the row untouched, if no token is legal.",
        first="grammar.a_dead_end_is_raised",
    ),
    Mutant(
        "tags-validate-by-accepting",
        "tag_markup.Markup",
        (
            "        state = self.states[-1]\n"
            "        for count, token_id in enumerate(token_ids):\n"
            "            state = self.after(state, token_id)\n"
            "            if state is None:\n"
            "                return count\n"
            "        return len(token_ids)\n"
            "\n"
            "    def rollback"
        ),
        (
            "        count = self.accept(token_ids)\n"
            "        self.rollback(count)\n"
            "        return count\n"
            "\n"
            "    def rollback"
        ),
        "G, validate: Return how many of `token_ids` `accept` would take. The state does not move.",
        reason=(
            "Validate was asked for a few tokens; now for more than can be rolled back, and what is "
            "left to roll back is used."
        ),
        now="grammar.validate_takes_any_number_of_tokens",
    ),
)
