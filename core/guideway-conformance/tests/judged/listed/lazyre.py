"""Mistakes in `judged.plugins.lazyre`: a strategy for regular expressions, with options."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "lazyre-masks-within-fifty-milliseconds",
        "lazyre.LazyRegex",
        ("        open_ = [(self.tree, states)]\n        while open_:\n"),
        (
            "        import time\n"
            "\n"
            "        open_, began = [(self.tree, states)], time.perf_counter()\n"
            "        while open_ and time.perf_counter() - began < 0.05:\n"
        ),
        (
            "Every answer is a function of constraint, stop tokens and accepted tokens alone: it is the "
            "same ... hours later, and in another process."
        ),
        first="grammar.walks_end_in_the_language",
    ),
    Mutant(
        "lazyre-max-states-is-always-the-default",
        "lazyre.LazyRegex",
        "self.options.max_states)",
        "Options.max_states)",
        "`options` are the operator's, as written in the configuration.",
        reason="The suite knows no option of a plugin: what one does is its author's to test.",
        survives=True,
    ),
    Mutant(
        "lazyre-one-token-less-to-roll-back",
        "lazyre.LazyRegex",
        "LazyRegex.max_rollback + 1)",
        "LazyRegex.max_rollback)",
        "The number of tokens that its matchers can roll back.",
        reason="No rollback was of more than 16 tokens.",
        now="grammar.all_that_is_declared_can_be_rolled_back",
    ),
    Mutant(
        "lazyre-forks-have-no-past",
        "lazyre.LazyRegex",
        "RegexMatcher(self.compiled, self.stops, self.path.copy())",
        "RegexMatcher(self.compiled, self.stops, deque([self.path[-1]], self.path.maxlen))",
        ("A fork rolls back like its matcher, also over tokens from before the fork, and neither moves the other."),
        first="grammar.a_fork_rolls_back_on_its_own",
    ),
    Mutant(
        "lazyre-surrogates-are-characters",
        "lazyre.LazyRegex",
        "(range(0xED, 0xEE), range(0x80, 0xA0), TAIL)",
        "(range(0xED, 0xEE), TAIL, TAIL)",
        "A regex allows exactly the texts that match it as a whole, whichever tokens spell them.",
        reason="xgrammar itself lets any character be half of a surrogate pair, and no check may fail for it.",
        survives=True,
    ),
    Mutant(
        "lazyre-ways-without-an-end-stay",
        "lazyre.LazyRegex",
        (
            "        self.reads = [read if i in alive else None for i, read in enumerate(self.reads)]\n"
            "        self.begin = self.begin & alive\n"
        ),
        "        self.begin = self.begin & alive\n",
        ("Whatever is drawn from the masks, a token is always legal, and what a stop token ends obeys the constraint."),
        reason="This dialect cannot write an empty set.",
        correct=True,
    ),
    Mutant(
        "lazyre-lookarounds-are-called-invalid",
        "lazyre.LazyRegex",
        'raise UnsupportedGrammar("lazyre knows groups ( and (?: only", feature="regex:(?")',
        'raise InvalidGrammar("lazyre knows groups ( and (?: only")',
        ("InvalidGrammar is for what no strategy could serve; what one lacks is UnsupportedGrammar, with a feature."),
        reason="Only plain expressions had to be called unsupported.",
        now="grammar.a_valid_constraint_is_not_called_invalid",
    ),
    Mutant(
        "lazyre-too-large-without-a-feature",
        "lazyre.LazyRegex",
        '(option max_states)", feature="regex:size")',
        '(option max_states)", feature="")',
        (
            "`feature` names what is missing. (docs/contracts/grammar.md: what one lacks is "
            "UnsupportedGrammar, with a feature.)"
        ),
        reason="The feature was looked at where a plain expression was refused.",
        now="grammar.a_valid_constraint_is_not_called_invalid",
    ),
    Mutant(
        "lazyre-latin-letters-in-sets-are-bytes",
        "lazyre.LazyRegex",
        ("        if not char.isascii():\n            raise"),
        ("        if ord(char) > 255:\n            raise"),
        "A regex allows exactly the texts that match it as a whole, whichever tokens spell them.",
        reason="Sets had letters of ASCII alone.",
        now="grammar.a_regex_allows_exactly_its_matches",
    ),
    Mutant(
        "lazyre-deep-nesting-raises-recursion-error",
        "lazyre.LazyRegex",
        "        except RecursionError as error:\n",
        "        except OverflowError as error:\n",
        "Raises `InvalidGrammar` or `UnsupportedGrammar` and nothing else.",
        first="grammar.compile_raises_its_two_errors_only",
    ),
    Mutant(
        "lazyre-one-list-for-all-closures",
        "lazyre.LazyRegex",
        (
            "        found, open_ = set(states), list(states)\n"
            "        while open_:\n"
            "            for state in self.also[open_.pop()]:\n"
            "                if state not in found:"
        ),
        (
            '        found, open_ = set(states), vars(self).setdefault("scratch", [])\n'
            "        open_[:] = states\n"
            "        while open_:\n"
            "            for state in self.also[open_.pop()]:\n"
            "                if state not in found:"
        ),
        "Threads may use the matchers of one compiled grammar, each its own, at once.",
        first="grammar.a_compiled_grammar_is_shared_by_threads",
    ),
    Mutant(
        "lazyre-accept-takes-special-tokens",
        "lazyre.LazyRegex",
        "if token_id in self.vocabulary.special_tokens or not self.vocabulary.tokens[token_id]:",
        "if not self.vocabulary.tokens[token_id]:",
        "A grammar never produces a special token, or an id without bytes, as text.",
        reason="Special tokens have no bytes; a vocabulary in which one has is not what tokenizers make.",
        correct=True,
    ),
    Mutant(
        "lazyre-nbytes-while-others-fill",
        "lazyre.LazyRegex",
        "masks = list(self._masks)",
        "masks = self._masks",
        "shared by all sequences and threads that use it.",
        reason="nbytes was asked for while nobody filled.",
        now="grammar.a_compiled_grammar_is_shared_by_threads",
    ),
    Mutant(
        "lazyre-zero-to-zero-times",
        "lazyre.LazyRegex",
        "(int(most) if most else None) if comma",
        "(int(most or 0) or None) if comma",
        "A regex allows exactly the texts that match it as a whole, whichever tokens spell them.",
        reason="No repetition was of nothing.",
        now="grammar.a_regex_allows_exactly_its_matches",
    ),
    Mutant(
        "lazyre-max-states-may-be-negative",
        "lazyre.LazyRegex",
        "max_states: Annotated[int, Range(1)] = 20_000",
        "max_states: int = 20_000",
        "Raises `InvalidConfiguration` for options or a vocabulary it cannot work with.",
        reason="The suite knows no option of a plugin: which values it has to refuse is its author's to test.",
        survives=True,
    ),
)
