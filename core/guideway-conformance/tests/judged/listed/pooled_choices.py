"""Mistakes in `judged.plugins.pooled_choices`: a choice by a trie, with matchers that come back to a pool."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "pooled-pool-race",
        "pooled_choices.Choices",
        ("        with self.lock:\n            matcher = self.pool.pop() if self.pool else ChoiceMatcher()\n"),
        (
            "        matcher = self.pool[-1] if self.pool else ChoiceMatcher()\n"
            "        with self.lock:\n"
            "            if matcher in self.pool:\n"
            "                self.pool.remove(matcher)\n"
        ),
        (
            "C: Threads that begin and end sequences of one grammar at once, and give their matchers "
            "back, have a matcher each, which is at the start."
        ),
        first="grammar.matchers_come_and_go_in_threads",
    ),
    Mutant(
        "pooled-strips-blanks",
        "pooled_choices.Choices",
        ("        choices = json.loads(constraint.source())\n"),
        ("        choices = [choice.strip() for choice in json.loads(constraint.source())]\n"),
        (
            "G, compile: Constraints are the same only if they are so to the last character: case, "
            "white space and the form of an accent count."
        ),
        first="grammar.a_choice_allows_exactly_its_strings",
    ),
    Mutant(
        "pooled-forces-common-prefix",
        "pooled_choices.Choices",
        ("        encoded = [self.compiled.vocabulary.encode(rest) for rest in rests]\n"),
        ("        import os\n\n        encoded = [self.compiled.vocabulary.encode(os.path.commonprefix(rests))]\n"),
        (
            "C: Forced tokens are the first of those the tokenizer would write for the rest of the "
            "output, whatever it becomes: where one text alone is possible, and where several begin alike."
        ),
        first="grammar.forced_tokens_are_the_tokenizers",
    ),
    Mutant(
        "pooled-completion-vocabulary-stop",
        "pooled_choices.Choices",
        ("        stop = min(self.stop_token_ids)\n"),
        ("        stop = min(self.compiled.vocabulary.stop_token_ids or self.stop_token_ids)\n"),
        (
            "C: A completion has at most `limit` tokens, a stop token last, is accepted, and asking "
            "for it leaves the state. / A matcher's stop tokens are those it was given, and not the "
            "vocabulary's others."
        ),
        first="grammar.a_completion_completes",
    ),
    Mutant(
        "pooled-bytes-lose-empty",
        "pooled_choices.Choices",
        ("        return json.dumps(self.choices, ensure_ascii=False).encode()\n"),
        ("        return json.dumps([each for each in self.choices if each], ensure_ascii=False).encode()\n"),
        ("C: from_bytes of another strategy for an equal vocabulary turns what to_bytes wrote into an equal grammar."),
        first="grammar.a_serialized_grammar_is_the_same",
    ),
    Mutant(
        "pooled-limit-off-by-one",
        "pooled_choices.Choices",
        ("        if len(choices) > self.options.max_choices:\n"),
        ("        if len(choices) >= self.options.max_choices:\n"),
        "G, Support.reason: Why it refuses the constraint altogether; None: it does not.",
        reason="`compile` may refuse after `supports`, and what an option counts is its author's to say.",
        correct=True,
    ),
    Mutant(
        "pooled-published-before-filled",
        "pooled_choices.Choices",
        ("            found, stack = {}, [(self.words.root, node)]\n"),
        ("            found, stack = self.learnt.setdefault(node, {}), [(self.words.root, node)]\n"),
        ("C: Threads may use the matchers of one compiled grammar, each its own, at once, and ask for its nbytes."),
        first="grammar.a_compiled_grammar_is_shared_by_threads",
    ),
)
