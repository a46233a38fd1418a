"""Mistakes in `judged.plugins.trie_choice`: a strategy for choices, by a trie of tokens."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "trie-forced-looks-at-32-choices",
        "trie_choice.TrieChoice",
        "for count, rest in enumerate(self.rests(start)):",
        "for count, rest in zip(range(MOST_RESTS), self.rests(start)):",
        ("Forced tokens spell the only text that can come next: every token that is legal on the way is part of it."),
        first="grammar.forced_tokens_are_the_only_way",
    ),
    Mutant(
        "trie-forced-forgets-a-choice-inside-another",
        "trie_choice.TrieChoice",
        ("            if node in self.ends:\n                yield before"),
        ("            if node in self.ends and not self.children[node]:\n                yield before"),
        "Tokens that must come next whatever the model says.",
        first="grammar.forced_tokens_are_the_only_way",
    ),
    Mutant(
        "trie-forced-encodes-the-common-text",
        "trie_choice.TrieChoice",
        (
            "        common: list[int] | None = None\n"
            "        for count, rest in enumerate(self.rests(start)):\n"
            "            written = self.lexicon.vocabulary.encode(rest) if rest and count < MOST_RESTS "
            "else None\n"
            "            if not written:\n"
            "                return ()\n"
            "            if common is None:\n"
            "                common = list(written)\n"
            "            while common != written[: len(common)]:\n"
            "                common.pop()\n"
        ),
        (
            "        rests: list[bytes] = []\n"
            "        for rest in self.rests(start):\n"
            "            if not rest or len(rests) == MOST_RESTS:\n"
            "                return ()\n"
            "            rests.append(rest)\n"
            "        shared = next((i for i, two in enumerate(zip(*rests)) if len(set(two)) > 1), "
            "min(map(len, rests)))\n"
            "        common = self.lexicon.vocabulary.encode(rests[0][:shared])\n"
        ),
        "Forced tokens are the first of those the tokenizer would write, whatever the output becomes.",
        first="grammar.forced_tokens_are_the_tokenizers",
    ),
    Mutant(
        "trie-completion-gives-up-one-early",
        "trie_choice.TrieChoice",
        "for _ in range(most + 1):",
        "for _ in range(most):",
        "Shortest_completion returns None only if no completion is as short as `limit`.",
        first="grammar.a_completion_is_found_if_there_is_one",
    ),
    Mutant(
        "trie-completion-forgets-that-stop-is-a-token",
        "trie_choice.TrieChoice",
        "self.trie.shortest(self.path[-1], limit - 1)",
        "self.trie.shortest(self.path[-1], limit)",
        "At most `limit` token ids, a stop token last.",
        first="grammar.a_completion_is_found_if_there_is_one",
    ),
    Mutant(
        "trie-completion-stops-with-the-vocabularys",
        "trie_choice.TrieChoice",
        "(*tokens, min(self.stops))",
        "(*tokens, min(self.trie.lexicon.vocabulary.stop_token_ids))",
        "Stop tokens are the ones given to `matcher`, not those of the vocabulary.",
        first="grammar.a_completion_completes",
    ),
    Mutant(
        "trie-recycled-matcher-keeps-its-stop-tokens",
        "trie_choice.TrieChoice",
        "        spare.stops = stop_token_ids\n",
        "        spare.stops = spare.stops or stop_token_ids\n",
        "A later `matcher(...)` may return it, reset to the start, with the new stop tokens.",
        first="grammar.a_recycled_matcher_is_as_new",
    ),
    Mutant(
        "trie-spares-without-a-lock",
        "trie_choice.TrieChoice",
        ("        with self._lock:\n            spare = self._spares.pop() if self._spares else None"),
        "        spare = self._spares.pop() if self._spares else None",
        "a factory of matchers, shared by all sequences and threads that use it.",
        reason="Nothing comes between the test and the pop: CPython changes threads at neither.",
        correct=True,
    ),
    Mutant(
        "trie-terminated-forks-share-their-path",
        "trie_choice.TrieChoice",
        "ChoiceMatcher(self.trie, self.stops, self.path.copy())",
        "ChoiceMatcher(self.trie, self.stops, self.path if self.is_terminated() else self.path.copy())",
        ("A fork rolls back like its matcher, also over tokens from before the fork, and neither moves the other."),
        first="grammar.a_fork_rolls_back_on_its_own",
    ),
    Mutant(
        "trie-nbytes-of-the-beginning",
        "trie_choice.TrieChoice",
        ("return self._fixed + sum(sys.getsizeof(ways) + 32 * len(ways) for ways in list(self.trie.found.values()))"),
        "return self._fixed",
        "Memory this grammar holds, in bytes, as near as it can be told; bounds the host's cache.",
        reason="It is wrong by a factor of 2.3 at worst; the rule allows one of 8.",
        correct=True,
    ),
    Mutant(
        "trie-choices-are-stripped",
        "trie_choice.TrieChoice",
        "Trie([choice.encode() for choice in choices], lexicon)",
        "Trie([choice.strip().encode() for choice in choices], lexicon)",
        (
            "Constraints are the same only if they are so to the last character: case, white space and "
            "the form of an accent count."
        ),
        first="grammar.a_choice_allows_exactly_its_strings",
    ),
    Mutant(
        "trie-special-tokens-with-bytes-are-text",
        "trie_choice.TrieChoice",
        "if token and i not in vocabulary.special_tokens]",
        "if token]",
        "A grammar never produces one as text.",
        reason="Special tokens have no bytes; a vocabulary in which one has is not what tokenizers make.",
        correct=True,
    ),
    Mutant(
        "trie-one-id-for-each-text",
        "trie_choice.TrieChoice",
        (
            "                while at < end and texts[at] == text:\n"
            "                    ways[ids[at]] = child\n"
            "                    at += 1"
        ),
        (
            "                if at < end and texts[at] == text:\n"
            "                    ways[ids[at]] = child\n"
            "                while at < end and texts[at] == text:\n"
            "                    at += 1"
        ),
        (
            "What counts of an output is its bytes: however they are cut into tokens, every way is legal "
            "and leads to the same state."
        ),
        first="grammar.a_choice_allows_exactly_its_strings",
    ),
    Mutant(
        "trie-the-last-grammar-is-kept",
        "trie_choice.TrieChoice",
        ("        return CompiledChoice(json.loads(constraint.source()), self.lexicon)\n\n    def from_bytes"),
        (
            "        self.last = CompiledChoice(json.loads(constraint.source()), self.lexicon)\n"
            "        return self.last\n"
            "\n"
            "    def from_bytes"
        ),
        "A compiled grammar that nobody holds any more is freed, and its matchers.",
        first="grammar.hundreds_of_compilations_at_once",
    ),
    Mutant(
        "trie-options-are-not-looked-at",
        "trie_choice.TrieChoice",
        '        parse_options(NoOptions, options, where="grammar.trie")\n',
        "        self.options = dict(options)\n",
        "Raises `InvalidConfiguration` for options or a vocabulary it cannot work with.",
        reason="Nobody said that an unknown option has to be refused. The contract does now.",
        now="grammar.the_constructor_raises_its_error_only",
    ),
    Mutant(
        "trie-validate-does-not-count-the-stop",
        "trie_choice.TrieChoice",
        ("            here = self._after(here, token)\n            if here is None:\n                return count\n"),
        (
            "            here = self._after(here, token)\n"
            "            if here is None or here == OVER:\n"
            "                return count\n"
        ),
        "Validate returns how many tokens accept would take, over a stop token too.",
        first="grammar.validate_counts_as_accept_does",
    ),
    Mutant(
        "trie-dead-end-clears-the-row",
        "trie_choice.TrieChoice",
        ("        elif ways:\n            allow_only(bitmask, row, ways)\n        else:\n            raise DeadEnd("),
        (
            "        else:\n"
            "            allow_only(bitmask, row, ways)\n"
            "        if not ways and here not in self.trie.ends:\n"
            "            raise DeadEnd("
        ),
        "Raises `DeadEnd`, leaving the row untouched, if no token is legal.",
        first="grammar.a_dead_end_is_raised",
    ),
    Mutant(
        "trie-lexicons-by-tokens",
        "trie_choice.TrieChoice",
        "        self.lexicon = Lexicon(vocabulary)\n",
        (
            "        self.lexicon = self._lexicons.setdefault(vocabulary.tokens, Lexicon(vocabulary))\n"
            "\n"
            "    _lexicons: dict[Any, Lexicon] = {}\n"
        ),
        ("Compiles constraints for one vocabulary. (docs/contracts/grammar.md: Two strategies ... do not share ...)"),
        reason="All vocabularies of a run had other tokens.",
        now="grammar.strategies_of_other_vocabularies_are_independent",
    ),
    Mutant(
        "trie-choices-as-they-are-given",
        "trie_choice.TrieChoice",
        ("        return CompiledChoice(json.loads(constraint.source()), self.lexicon)\n\n    def from_bytes"),
        (
            "        return CompiledChoice([*constraint.choices], self.lexicon)  # type: ignore[attr-defined]\n"
            "\n"
            "    def from_bytes"
        ),
        (
            "Raises `InvalidGrammar` if it is malformed. (docs/contracts/grammar.md: A malformed "
            "constraint is not compiled.)"
        ),
        first="grammar.compile_raises_its_two_errors_only",
    ),
    Mutant(
        "trie-ways-are-seen-before-they-are-found",
        "trie_choice.TrieChoice",
        "        ways: dict[int, int] = {}\n",
        "        ways = self.found[start] = {}\n",
        "Threads may use the matchers of one compiled grammar, each its own, at once.",
        first="grammar.a_compiled_grammar_is_shared_by_threads",
    ),
    Mutant(
        "trie-rollback-does-not-count-the-stop",
        "trie_choice.TrieChoice",
        "        del self.path[len(self.path) - num_tokens :]\n",
        (
            "        if self.path[-1] == OVER and num_tokens:\n"
            "            self.path.pop()\n"
            "        del self.path[len(self.path) - num_tokens :]\n"
        ),
        "Undo the last `num_tokens` accepted tokens, also over a termination.",
        first="grammar.rollback_restores_masks",
    ),
    Mutant(
        "trie-a-limit-that-is-a-float",
        "trie_choice.TrieChoice",
        'MappingProxyType({"literals": 100_000})',
        'MappingProxyType({"literals": 1e5})',
        "Its limits are of rules that the admission guard has, each a whole number of at least 0.",
        first="grammar.limits_are_rules_of_the_guard",
    ),
)
