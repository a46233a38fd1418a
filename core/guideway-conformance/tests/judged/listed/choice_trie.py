"""Mistakes in `judged.plugins.choice_trie`: choices as a trie over bytes, with all capabilities."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "ct-draft-row-key-lacks-grammar",
        "choice_trie.ChoiceTrie",
        ("        key = (id(trie), node, stops)\n        if key not in rows:\n            if not"),
        ("        key = (node, stops)\n        if key not in rows:\n            if not"),
        (
            "docs/contracts/grammar.md: 'A job's first row is the mask of its state, the row after draft "
            "i the mask once drafts up to i were accepted.'; 'all other jobs are filled right'"
        ),
        first="grammar.fill_takes_jobs_in_any_order",
    ),
    Mutant(
        "ct-draft-into-dead-end-counts",
        "choice_trie.ChoiceTrie",
        "                break  # the draft led to a dead end",
        "                return count + 1",
        (
            "api/grammar.py GrammarStrategy.fill: 'after one that leads to a dead end (it counts as "
            "refused) stay untouched'"
        ),
        first="grammar.a_failed_job_fails_alone",
    ),
    Mutant(
        "ct-forced-encodes-common-prefix",
        "choice_trie.ChoiceTrie",
        "        written = [self.trie.vocabulary.encode(text) for text in endings]",
        (
            "        from os.path import commonprefix\n"
            "        written = [self.trie.vocabulary.encode(commonprefix(endings))]"
        ),
        (
            "api/grammar.py Matcher.forced_tokens: 'as the tokenizer would write them'; "
            "docs/contracts/grammar.md: 'Forced tokens are the first of those the tokenizer would write "
            "for the rest of the output, whatever it becomes: ... and where several begin alike.'"
        ),
        first="grammar.forced_tokens_are_the_tokenizers",
    ),
    Mutant(
        "ct-completion-one-too-long",
        "choice_trie.ChoiceTrie",
        "for _ in range(limit):",
        "for _ in range(limit + 1):",
        "api/grammar.py Matcher.shortest_completion: 'At most `limit` token ids, a stop token last'",
        first="grammar.a_completion_is_found_if_there_is_one",
    ),
    Mutant(
        "ct-to-bytes-drops-empty-choice",
        "choice_trie.ChoiceTrie",
        "json.dumps([choice.hex() for choice in self.choices]).encode()",
        "json.dumps([choice.hex() for choice in self.choices if choice]).encode()",
        (
            "docs/contracts/grammar.md: 'from_bytes of another strategy for an equal vocabulary turns "
            "what to_bytes wrote into an equal grammar.'"
        ),
        first="grammar.a_serialized_grammar_is_the_same",
    ),
    Mutant(
        "ct-longest-token-off-by-one",
        "choice_trie.ChoiceTrie",
        "if len(text) < self.longest:",
        "if len(text) + 1 < self.longest:",
        "api/grammar.py Matcher.fill_bitmask: 'bit t is set exactly if accept([t]) == 1'",
        first="grammar.vocabularies_of_any_size_work",
    ),
    Mutant(
        "ct-same-bytes-last-id-only",
        "choice_trie.ChoiceTrie",
        "self.ids.setdefault(token, []).append(token_id)",
        "self.ids[token] = [token_id]",
        (
            "api/grammar.py Matcher.fill_bitmask: 'bit t is set exactly if accept([t]) == 1'; Matcher: "
            "'however they are cut into tokens, every way is legal'"
        ),
        first="grammar.bits_are_what_accept_takes",
    ),
)
