"""Mistakes in `judged.plugins.contrast`: what the context makes likelier."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "contrast-one-past-the-vocabulary",
        "contrast.Contrast",
        "not 0 <= token_id < len(self.context.vocabulary) for",
        "not 0 <= token_id <= len(self.context.vocabulary) for",
        (
            "docs/contracts/modifier.md: `companions` gives sequences to run beside each of a request, "
            "with prompts of the vocabulary."
        ),
        reason="A value that no example has. The token id past the vocabulary comes now.",
        now="modifier.options_near_its_examples_are_served",
    ),
    Mutant(
        "contrast-no-companion-taken-for-row-0",
        "contrast.Contrast",
        ("        other = ops.where_rows(other, every, has_none, own)\n"),
        "",
        "api/modifier.py: Step.companion_rows: -1 where there is none.",
        reason=(
            "What `companions` gives runs in each step, and this plugin gives one always. "
            "The docstring of `Step.companion_rows` says so now."
        ),
        correct=True,
    ),
    Mutant(
        "contrast-forbidden-by-the-companion",
        "contrast.Contrast",
        ("        other = ops.where_rows(other, every, other == -np.inf, own)\n"),
        "",
        "docs/contracts/modifier.md: Results are logits, or log-probabilities: numbers or -inf, no NaN.",
        first="modifier.numbers_stay_numbers",
    ),
    Mutant(
        "contrast-draft-does-not-end-it",
        "contrast.Contrast",
        "                    progress = self.after(state, progress, draft)",
        "                    progress = progress._replace(heard=progress.heard + 1)",
        (
            "api/modifier.py: LogitModifier.prepare: the row after a draft is treated as if that draft "
            "were final, or drafts would change the output."
        ),
        reason="What the modifier itself forbids was neither drafted nor heard. Texts of its options are now.",
        now="modifier.any_token_may_come",
    ),
    Mutant(
        "contrast-guided-counted-by-step",
        "contrast.Contrast",
        ("        for token_id in token_ids:\n            state.guided += not state.progress.over\n"),
        ("        state.guided += 0 if state.progress.over else len(token_ids)\n        for token_id in token_ids:\n"),
        (
            "docs/writing/modifier.md: Several tokens may come in a step. State, outcome and report "
            "are then those of the same tokens one by one."
        ),
        reason="The same: no step had the text of its options amid it.",
        now="modifier.any_token_may_come",
    ),
    Mutant(
        "contrast-one-name-is-a-str",
        "contrast.Contrast",
        'return ("contrast.strength",) if state.moot else ()',
        'return ("contrast.strength") if state.moot else ()',
        "docs/contracts/modifier.md: `unenforced` gives a sequence of names, which is not one str.",
        reason="No prompt was of a token or two.",
        now="modifier.prompts_may_be_short",
    ),
    Mutant(
        "contrast-strength-by-id-of-wish",
        "contrast.Contrast",
        ("        return wish.strength * (min(1.0, (progress.heard + 1) / wish.ramp) if wish.ramp else 1.0)"),
        (
            '        known = self.__dict__.setdefault("known", {})\n'
            "        key = id(wish), min(progress.heard, wish.ramp)\n"
            "        if key not in known:\n"
            "            known[key] = wish.strength * "
            "(min(1.0, (progress.heard + 1) / wish.ramp) if wish.ramp else 1.0)\n"
            "        return known[key]"
        ),
        (
            "docs/contracts/modifier.md: Whatever happened, a sequence gets what a new state that "
            "heard the same tokens gets alone. / After `release` nothing of the sequence is left: "
            "neither its state nor what was noted beside it."
        ),
        reason="The suite kept every state, so no address came again.",
        now="modifier.one_request_after_another",
    ),
    Mutant(
        "contrast-fork-forgets-the-count",
        "contrast.Contrast",
        "return replace(state)",
        "return State(state.wish, state.until, state.moot, state.progress)",
        (
            "docs/contracts/modifier.md: A forked state is a copy, however late: it gives what its "
            "parent gives, `forced`, `validate` and `report` too."
        ),
        first="modifier.forks_go_on_as_their_parent",
    ),
    Mutant(
        "contrast-wish-by-request-id",
        "contrast.Contrast",
        ('        wish = parse_options(Wish, request.params.modifiers[self.name], where="modifiers.contrast")\n'),
        (
            '        known = self.__dict__.setdefault("known", {})\n'
            "        if request.request_id not in known:\n"
            "            known[request.request_id] = parse_options(\n"
            '                Wish, request.params.modifiers[self.name], where="modifiers.contrast"\n'
            "            )\n"
            "        wish = known[request.request_id]\n"
        ),
        (
            "api/modifier.py: LogitModifier: what it does and answers is a function of request, "
            "options, tokens and feedback."
        ),
        reason="No id of a request came again with other options.",
        now="modifier.one_request_after_another",
    ),
    Mutant(
        "contrast-called-idempotent",
        "contrast.Contrast",
        ("class ContrastTransform(LogitTransform):\n"),
        ("class ContrastTransform(LogitTransform):\n    idempotent = True\n\n"),
        (
            "api/modifier.py: LogitTransform.idempotent: True if applying it again, after a call that "
            "ended or that failed halfway, gives what one call gives."
        ),
        first="modifier.applied_again_it_changes_nothing",
    ),
)
