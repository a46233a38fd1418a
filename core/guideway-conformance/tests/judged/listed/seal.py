"""Mistakes in `judged.plugins.seal`: a watermark for each context."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "seal-drafts-note-no-context",
        "seal.Seal",
        ("            own.add(seed)\n            if token_id is not None:\n"),
        "            if token_id is not None:\n",
        (
            "contracts/modifier.md: A row after as many drafts as `validate` lets pass gets what it would "
            "get if they were final, though nobody has heard their feedback, so that drafts never change the"
            " distribution."
        ),
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "seal-close-by-another-name",
        "seal.Seal",
        "    def close(self) -> None:\n",
        "    def shutdown(self) -> None:\n",
        (
            "contracts/modifier.md: When a modifier and its transform are closed, their threads end and "
            "their files are closed, though somebody still holds them."
        ),
        reason=(
            "Modifiers were closed after the work of one sequence. They are closed after that of a full batch too."
        ),
        now="modifier.closing_ends_threads_and_files_of_a_modifier",
    ),
    Mutant(
        "seal-results-as-they-come",
        "seal.Seal",
        "            found = list(self.pool.map(lambda each: each[0].ahead(each[1]), acting))\n",
        (
            "            from concurrent.futures import as_completed\n"
            "\n"
            "            waiting = [self.pool.submit(state.ahead, drafts) for state, drafts in acting]\n"
            "            found = [each.result() for each in as_completed(waiting)]\n"
        ),
        "contracts/modifier.md: As many sequences as the context says may run at once, each with drafts.",
        first="modifier.options_near_its_examples_are_served",
    ),
    Mutant(
        "seal-hash-of-the-process",
        "seal.Seal",
        (
            '        text = np.array(context, dtype="<i4").tobytes()\n'
            "        return int.from_bytes(hashlib.blake2b(text, key=self.secret, digest_size=8).digest(), "
            '"little", signed=True)\n'
        ),
        "        return hash((self.secret, context))\n",
        (
            "contracts/modifier.md: In another process the same requests and tokens lead to the same, so "
            "that state can be rebuilt anywhere."
        ),
        first="modifier.any_process",
    ),
    Mutant(
        "seal-floor-under-the-log-probabilities",
        "seal.Seal",
        "        drawn = ops.argmax(ops.gather(logprobs, rows) + noise)\n",
        (
            "        own = ops.gather(logprobs, rows)\n"
            "        own = ops.where_rows(ops.gather(own, every), every, own < -30.0, -30.0)  # below it is "
            "noise\n"
            "        drawn = ops.argmax(own + noise)\n"
        ),
        (
            "contracts/modifier.md: No uniform numbers in (0, 1) make it draw a token at -inf, be they the "
            "least, the greatest or far apart."
        ),
        reason=(
            "In every host the log-probabilities that a sampler gets are normalized, which its docstring "
            "says now: then the noise never reaches the floor."
        ),
        correct=True,
    ),
    Mutant(
        "seal-forced-tokens-not-heard",
        "seal.Seal",
        '        chances = [None] * len(token_ids) if feedback is None else feedback["chance"].tolist()\n',
        (
            "        if feedback is None:  # not drawn by us\n"
            "            return CONTINUE\n"
            '        chances = feedback["chance"].tolist()\n'
        ),
        (
            "contracts/modifier.md: Several tokens of a step come with the feedback of each, in order, or "
            "without any, and lead where they lead one by one / A row after as many drafts as `validate` "
            "lets pass gets what it would get if they were final"
        ),
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "seal-release-of-none",
        "seal.Seal",
        ("    def close(self) -> None:\n        if self.pool is not None:\n"),
        (
            "    def release(self, state: State | None) -> None:\n"
            "        state.seen.clear()\n"
            "\n"
            "    def close(self) -> None:\n"
            "        if self.pool is not None:\n"
        ),
        "contracts/modifier.md: A sequence is released with its state, or with None if it has none.",
        first="modifier.release_takes_every_end",
    ),
    Mutant(
        "seal-copies-what-was-seen",
        "seal.Seal",
        "list[tuple[int, bool]](), set[int]()\n",
        "list[tuple[int, bool]](), set(self.seen)\n",
        (
            "contracts/modifier.md: `prepare` and `accept` may look at each token of a sequence a few times,"
            " and not at all of them for each of them"
        ),
        reason="A call may look at each token of a sequence a few times, and this one looks at each once.",
        correct=True,
    ),
)
