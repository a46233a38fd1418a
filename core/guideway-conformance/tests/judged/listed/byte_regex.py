"""Mistakes in `judged.plugins.byte_regex`: regular expressions as an automaton made as needed."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "re-recycled-keeps-stops",
        "byte_regex.ByteRegex",
        "matcher.__init__(self, stop_token_ids, [0])",
        ("matcher.dfa = self\n        matcher.path.append(0)"),
        (
            "docs/contracts/grammar.md: 'A matcher made after others were given back is at the start of "
            "the grammar, with the stop tokens it was asked for'"
        ),
        first="grammar.a_recycled_matcher_is_as_new",
    ),
    Mutant(
        "re-history-without-drafts",
        "byte_regex.ByteRegex",
        "maxlen=2 * BACK + 1",
        "maxlen=BACK + 1",
        (
            "docs/contracts/grammar.md: 'A matcher rolls back as many tokens as `max_rollback` says, ... "
            "whether or not a fill with drafts came last'"
        ),
        correct=True,
        reason=(
            "Drafts that a fill undid used up what can be rolled back: the host replays beyond it, as "
            "`max_rollback` says. The rule now says so too."
        ),
    ),
    Mutant(
        "re-states-numbered-without-lock",
        "byte_regex.ByteRegex",
        ("        with self.lock:\n            if nodes not in"),
        ("        if True:\n            if nodes not in"),
        ("docs/contracts/grammar.md: 'Threads may use the matchers of one compiled grammar, each its own, at once'"),
        correct=True,
        reason=(
            "Python 3.11 changes threads between none of the lines of a list's end and its length that "
            "matter: no grammar came out wrong."
        ),
    ),
    Mutant(
        "re-grammars-kept",
        "byte_regex.ByteRegex",
        "        return Dfa(self, nfa, start, end)",
        (
            '        made = self.__dict__.setdefault("made", {})\n'
            "        return made.setdefault(constraint.source(), Dfa(self, nfa, start, end))"
        ),
        (
            "docs/contracts/grammar.md: 'A compiled grammar that nobody holds any more is freed, and its "
            "matchers: what is worth keeping is kept by the host, within its limit.'"
        ),
        first="grammar.released_grammars_are_freed",
    ),
    Mutant(
        "re-complement-of-nested-ranges",
        "byte_regex.ByteRegex",
        "at = max(at, hi + 1)",
        "at = hi + 1",
        (
            "docs/contracts/grammar.md: 'A regex allows exactly the texts that match it as a whole'; 'The "
            "language of a regex is all texts that Python's re.fullmatch takes'"
        ),
        now="grammar.a_set_has_its_characters",
        reason="No set had a part inside another one; now sets are put together of parts in every order.",
    ),
    Mutant(
        "re-fork-history-off-by-one",
        "byte_regex.ByteRegex",
        "return RegexMatcher(self.dfa, self.stops, self.path)",
        "return RegexMatcher(self.dfa, self.stops, list(self.path)[-BACK:])",
        (
            "docs/contracts/grammar.md: 'A matcher rolls back as many tokens as `max_rollback` says, ..., "
            "and so do its forks.'"
        ),
        first="grammar.all_that_is_declared_can_be_rolled_back",
    ),
    Mutant(
        "re-nbytes-lacks-masks",
        "byte_regex.ByteRegex",
        "masks = len(self.masks) * (150 + 4 * num_words(len(self.vocabulary)))",
        "masks = len(self.masks) * 150",
        ("api/grammar.py CompiledGrammar.nbytes: 'Memory this grammar holds, in bytes, as near as it can be told'"),
        correct=True,
        reason="What it says of its edges is more than all that it holds, with masks and without.",
    ),
)
