"""Mistakes in `judged.plugins.leash`: banned sequences and a closing."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "leash-key-without-closing",
        "leash.Leash",
        "        return tuple(tuple(each) for each in wish.banned), wish.closing\n",
        "        return tuple(tuple(each) for each in wish.banned)\n",
        (
            "docs/contracts/modifier.md: Either of two requests with equal `compile_key`s may be given what "
            "was compiled for the other: rows, end and `report` are the same."
        ),
        first="modifier.equal_keys_mean_equal_values",
    ),
    Mutant(
        "leash-forces-a-token-early",
        "leash.Leash",
        ("        if not state.closes(state.place):\n            return ()\n"),
        (
            "        if not state.budget or state.place.count + 1 < state.budget or "
            "state.ended(state.place):\n"
            "            return ()\n"
        ),
        (
            "api: LogitModifier.forced: At most `limit` tokens that must come next, because its transform "
            "leaves no other."
        ),
        first="modifier.forced_is_all_that_is_left",
    ),
    Mutant(
        "leash-validate-forgets-bans",
        "leash.Leash",
        (
            "            if token_id in state.forbidden(place):\n"
            "                return passed\n"
            "            place = state.after(place, token_id)\n"
            "        return len(token_ids)\n"
        ),
        ("            place = state.after(place, token_id)\n        return len(token_ids)\n"),
        ("api: LogitModifier.validate: Return how many of these drafts this modifier would let pass."),
        reason=(
            "No example has both, what is forbidden and what makes validate stop. Those of two examples "
            "together are tried now."
        ),
        now="modifier.validate_knows_what_is_forbidden",
    ),
    Mutant(
        "leash-unenforced-is-told-once",
        "leash.Leash",
        '        return ("leash.closing",) if state.short else ()\n',
        (
            "        short, state.short = state.short, False  # it is told once\n"
            '        return ("leash.closing",) if short else ()\n'
        ),
        (
            "docs/contracts/modifier.md: `unenforced` gives a sequence of names: the same for the same "
            "request and tokens, after replay and of a fork too. It does not move the state."
        ),
        reason=(
            "Nothing made it speak. Requests have few tokens and a small context now, numbers are as large "
            "as they may be, and each state is asked twice."
        ),
        now="modifier.requests_ask_for_other_things_too",
    ),
    Mutant(
        "leash-last-bit-of-a-word",
        "leash.Leash",
        (
            "                    allowed[entry, token_id // 32] &= ~np.array(1 << token_id % 32, "
            "dtype=np.uint32).view(np.int32)\n"
        ),
        "                    allowed[entry, token_id // 32] &= ~np.int32(1 << token_id % 32)\n",
        (
            "api: LogitTransform.bitmask / contracts: The logits have as many columns as the vocabulary has "
            "tokens, or more, and a token may have any place in it, be it at the border of a word of a "
            "bitmask."
        ),
        reason=("The lists of its lists ended with one of the ids at the borders. They end with each of them now."),
        now="modifier.options_near_its_examples_are_served",
    ),
    Mutant(
        "leash-compiles-into-itself",
        "leash.Leash",
        (
            "        last: dict[tuple[int, ...], frozenset[int]] = {}\n"
            "        for each in wish.banned:\n"
            "            start = tuple(each[:-1])\n"
            "            last[start] = last.get(start, frozenset()) | {each[-1]}\n"
            "        return Rules(last, tuple(sorted({len(start) for start in last})), wish.closing)\n"
        ),
        (
            "        self.last = {}\n"
            "        for each in wish.banned:\n"
            "            start = tuple(each[:-1])\n"
            "            self.last[start] = self.last.get(start, frozenset()) | {each[-1]}\n"
            "        return Rules(self.last, tuple(sorted({len(start) for start in self.last})), "
            "wish.closing)\n"
        ),
        ("docs/contracts/modifier.md: `compile` and `compile_key` may be called from several threads at once."),
        first="modifier.compile_serves_several_threads",
    ),
)
