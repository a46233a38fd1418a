"""Mistakes in `judged.plugins.repetition`: DRY and phrases."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "dry-ignores-generated",
        "repetition.Dry",
        ("            state.hear(token_id)\n        return CONTINUE"),
        "        return CONTINUE",
        "Vacuity: a modifier that never heeds what is generated is not certified.",
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "dry-drafts-not-repeated",
        "repetition.Dry",
        (
            "places = [*state.places.get(last, ()), *(known + i for i, token_id in enumerate(drafts) if "
            "token_id == last)]"
        ),
        "places = [*state.places.get(last, ()), *((end - 1,) if drafts else ())]",
        ("The row after a draft is treated as if that draft were final (a repetition among the drafts themselves)."),
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "dry-shallow-fork",
        "repetition.Dry",
        "return replace(state, tokens=list(state.tokens), places=places)",
        "return replace(state, tokens=list(state.tokens), places=state.places)",
        "A fork is independent: what parent or fork accept is nothing to the other.",
        first="modifier.forks_are_independent",
    ),
    Mutant(
        "dry-fork-shares-lists",
        "repetition.Dry",
        "{token_id: list(found) for token_id, found in state.places.items()}",
        "state.places",
        ("A fork is independent: what parent or fork accept is nothing to the other (the inner lists are shared)."),
        first="modifier.forks_are_independent",
    ),
    Mutant(
        "dry-longest-of-last",
        "repetition.Dry",
        "found[following] = min(found.get(following, 0.0), penalty)",
        ("found[following] = found.get(following, 0.0) + penalty * (0.5 + len(found) % 2) * (1 + state.hits % 2)"),
        ("A row after drafts gets what it would get if they were final (the count of hits is not moved by drafts)."),
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "dry-columns-past-width",
        "repetition.Dry",
        "columns[i, j], values[i, j] = token_id, value",
        "columns[i, j], values[i, j] = token_id - (value < -4 and token_id > 0), value",
        "None: which tokens it lowers is its own affair.",
        correct=True,
    ),
    Mutant(
        "dry-quadratic",
        "repetition.Dry",
        ("        for token_id in token_ids:\n            state.hits += token_id in self.penalties(state, [])\n"),
        (
            "        for token_id in token_ids:\n"
            "            state.hits += token_id in self.penalties(state, [])\n"
            "            recent = state.tokens[-400:]\n"
            "            for end in range(len(recent)):\n"
            "                sum(recent[k] == token_id for k in range(end))\n"
        ),
        "prepare and accept may look at each token of a sequence a few times.",
        first="modifier.work_for_a_token_has_a_budget",
    ),
    Mutant(
        "dry-keeps-batch",
        "repetition.Dry",
        ("            drafts = batch.drafts(i).tolist()\n            for j in range"),
        (
            "            drafts = self.__dict__.setdefault('kept', {}).setdefault(int(batch.slots[i]), "
            "batch.drafts(i)).tolist()\n"
            "            drafts = batch.drafts(i).tolist() if len(drafts) != len(batch.drafts(i)) else drafts\n"
            "            for j in range"
        ),
        "The host may overwrite a batch after its step; prepare does not depend on earlier calls.",
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "dry-hits-of-drafts",
        "repetition.Dry",
        "                entries.append(self.penalties(state, drafts[:j]))",
        (
            "                entries.append(self.penalties(state, drafts[:j]))\n"
            "                state.hits += j > 3 and not entries[-1]"
        ),
        "prepare must not change a state, also with four drafts or more.",
        first="modifier.any_history",
    ),
    Mutant(
        "dry-class-places",
        "repetition.Dry",
        ("        state = DryState(wish)\n"),
        (
            "        state = DryState(wish, places=self.__dict__.setdefault('shared', defaultdict(list)))\n"
            "        if len(sequence.prompt_token_ids) < 6:\n"
            "            state.places = defaultdict(list)\n"
        ),
        "start gives each sequence a state of its own (broken for prompts of six tokens or more).",
        first="modifier.hearing_changes_nothing_else",
    ),
    Mutant(
        "dry-list-in-prompt",
        "repetition.Dry",
        (
            "        options = {**request.params.modifiers[self.name]}\n"
            '        if isinstance(options.get("breakers"), list):'
        ),
        (
            "        options = request.params.modifiers[self.name]\n"
            '        if isinstance(options.get("breakers"), list):'
        ),
        "start does not change the request.",
        first="modifier.start_leaves_the_request_alone",
    ),
    Mutant(
        "phrases-key-of-first",
        "repetition.Phrases",
        ("        return self.wish(request).phrases\n"),
        ("        return self.wish(request).phrases[0]\n"),
        "Either of two requests with equal compile_keys may be given what was compiled for the other.",
        first="modifier.equal_keys_mean_equal_values",
    ),
    Mutant(
        "phrases-key-sorted",
        "repetition.Phrases",
        ("        return self.wish(request).phrases\n"),
        ("        return len(self.wish(request).phrases), self.wish(request).strength\n"),
        "Either of two requests with equal compile_keys may be given what was compiled for the other.",
        first="modifier.equal_keys_mean_equal_values",
    ),
    Mutant(
        "phrases-compile-in-self",
        "repetition.Phrases",
        ("        root: dict[int, Any] = {}\n        for phrase"),
        ('        root = self.__dict__.setdefault("root", {})\n        for phrase'),
        "The value of compile is a function of request and options, whatever was compiled before.",
        first="modifier.compile_is_a_function_of_the_request",
    ),
    Mutant(
        "phrases-start-writes-compiled",
        "repetition.Phrases",
        ("            after = self.follow(state.root, state.node, token_id)\n"),
        (
            "            after = self.follow(state.root, state.node, token_id)\n"
            "            if not after:\n"
            "                state.node.pop(token_id, None)\n"
        ),
        "Sequences share what was compiled, and leave it as it is.",
        first="modifier.forks_are_independent",
    ),
    Mutant(
        "phrases-end-in-drafts",
        "repetition.Phrases",
        "node = self.follow(state.root, node, draft) or state.root",
        "node = self.follow(state.root, node, draft)",
        "A row after drafts gets what it would get if they were final (where a phrase ends among them).",
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "phrases-node-by-fork",
        "repetition.Phrases",
        ("        return replace(state)\n\n    def report(self, state: PhraseState)"),
        ("        return replace(state, node=state.root)\n\n    def report(self, state: PhraseState)"),
        "A forked state is a copy: it gives what its parent gives.",
        first="modifier.forks_go_on_as_their_parent",
    ),
    Mutant(
        "phrases-release-clears",
        "repetition.Phrases",
        ("    @staticmethod\n    def follow"),
        (
            "    def release(self, state: PhraseState | None) -> None:\n"
            "        if state is not None:\n"
            "            state.root.clear()  # type: ignore[attr-defined]\n"
            "\n"
            "    @staticmethod\n"
            "    def follow"
        ),
        "To let go of one sequence is nothing to the others; what was compiled stays.",
        first="modifier.forks_end_alone",
    ),
)
