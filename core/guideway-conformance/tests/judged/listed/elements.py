"""Mistakes in `judged.plugins.elements`: documents of nested elements."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "markup-mask-key-of-two-frames",
        "elements.Markup",
        "        self.depth = 2 + words.longest // SHORTEST_TAG  # so many frames one token can close\n",
        "        self.depth = 2  # a token closes one element and sees the one around it\n",
        (
            "guideway.api.grammar.Matcher.fill_bitmask: so that bit t is set exactly if "
            "``accept([t]) == 1``. / contracts/grammar.md: A token is legal wherever its "
            "text may come next, though it ends or begins many parts of the output at once."
        ),
        reason=(
            "Tokens were cut from outputs that are as deep as the author made them; now "
            "parts of those are put into each other."
        ),
        now="grammar.tokens_over_many_levels_work",
    ),
    Mutant(
        "markup-recycled-keeps-its-sequence",
        "elements.Markup",
        "        matcher.begin(None, frozenset(), [], None)\n",
        "",
        (
            "contracts/grammar.md: A sequence that has ended leaves nothing behind, whether "
            "its matcher was given back or not. / "
            "guideway.api.grammar.CompiledGrammar.recycle: nothing of the earlier sequence is left in it."
        ),
        reason="Sequences ended one by one and after 8 tokens, so that one short one was kept.",
        now="grammar.long_sequences_are_freed",
    ),
    Mutant(
        "markup-spare-without-lock",
        "elements.Markup",
        ("        with self.lock:\n            matcher = self.spare.pop() if self.spare else MarkupMatcher()\n"),
        (
            "        matcher = self.spare[-1] if self.spare else MarkupMatcher()\n"
            "        if self.spare:\n"
            "            self.spare.pop()\n"
        ),
        (
            "contracts/grammar.md: A matcher that was given back is given out to one "
            "sequence at most, and is not the one of another that lives. / "
            "guideway.api.grammar.CompiledGrammar: shared by all sequences and threads that use it."
        ),
        reason="Matchers were given back and asked for by one thread.",
        now="grammar.matchers_come_and_go_in_threads",
    ),
    Mutant(
        "markup-rollback-of-nothing-revives",
        "elements.Markup",
        "            self.ended_at = None\n",
        "        self.ended_at = None\n",
        "contracts/grammar.md: Rollback of 0 tokens is a no-op, at the start, in between and once terminated.",
        reason="Walks of 6 tokens did not come to the end of an output; now whole outputs are among them.",
        now="grammar.rollback_of_nothing_does_nothing",
    ),
    Mutant(
        "markup-validate-goes-past-the-stop",
        "elements.Markup",
        ("            if token_id in self.stops:\n                return count + 1\n"),
        "",
        "contracts/grammar.md: Validate returns how many tokens accept would take, over a stop token too.",
        first="grammar.validate_counts_as_accept_does",
    ),
    Mutant(
        "markup-supports-reads",
        "elements.Markup",
        "        return Support(enforced=frozenset({constraint.kind}))\n",
        (
            "        root, contents = read(constraint.source())\n"
            "        return Support(enforced=frozenset({constraint.kind}) if root in "
            "contents else frozenset())\n"
        ),
        "guideway.api.grammar.GrammarStrategy.supports: Cheap ... Never raises for a constraint.",
        first="grammar.supports_never_raises",
    ),
    Mutant(
        "markup-special-tokens-are-text",
        "elements.Markup",
        (
            '        self.tokens = tuple(b"" if i in vocabulary.special_tokens else t for i, '
            "t in enumerate(vocabulary.tokens))\n"
        ),
        "        self.tokens = tuple(vocabulary.tokens)\n",
        (
            "guideway.api.vocabulary.Vocabulary.special_tokens: A grammar never produces one "
            "as text. / contracts/grammar.md: A grammar never produces a special token, or "
            "an id without bytes, as text."
        ),
        reason=(
            "`Vocabulary.tokens` says that special tokens have no bytes: the line that is "
            "changed guards against what no host hands over."
        ),
        correct=True,
    ),
    Mutant(
        "markup-stops-written-into-the-kept-mask",
        "elements.Markup",
        (
            "        bitmask[row, : len(mask)] = mask\n"
            "        bitmask[row, len(mask) :] = 0\n"
            "        for token_id in stops:\n"
            "            bitmask[row].view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)\n"
        ),
        (
            "        for token_id in stops:\n"
            "            mask.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)\n"
            "        bitmask[row, : len(mask)] = mask\n"
            "        bitmask[row, len(mask) :] = 0\n"
        ),
        "contracts/grammar.md: The stop tokens of one matcher are not those of another one of the same grammar.",
        first="grammar.matchers_with_other_stop_tokens_are_independent",
    ),
    Mutant(
        "markup-matcher-holds-its-grammar-weakly",
        "elements.Markup",
        "        self.compiled, self.stops, self.path = compiled, stops, path\n",
        (
            '        self.compiled = None if compiled is None else __import__("weakref").proxy(compiled)\n'
            "        self.stops, self.path = stops, path\n"
        ),
        (
            "guideway.api.grammar.Matcher: A matcher keeps what it needs: the host may let "
            "go of its grammar and its strategy, without closing it, while the matcher lives."
        ),
        first="grammar.all_that_is_declared_can_be_rolled_back",
    ),
)
