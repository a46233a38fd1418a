"""Mistakes in `judged.plugins.allowance`: a sampler with an allowance of surprise."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "allowance-uniforms-by-entry",
        "allowance.Allowance",
        '        drawn = ops.categorical(kept, step.uniform("allowance", rows)[:, 0])\n',
        '        drawn = ops.categorical(kept, step.uniform("allowance", every)[:, 0])\n',
        (
            "api: LogitTransform.apply/docs/contracts: A row gets the same whatever other rows are in its "
            "batch (uniform: a function of seed, sequence index, position and purpose, of `rows`: usually "
            "payload.rows)."
        ),
        first="modifier.release_ends_one_sequence",
    ),
    Mutant(
        "allowance-drafts-pass-until-spent",
        "allowance.Allowance",
        "        return 0 if state.wish.allowance else len(token_ids)\n",
        "        return 0 if state.wish.allowance and state.spent > 0 else len(token_ids)\n",
        (
            "docs/contracts/modifier.md: A row after as many drafts as `validate` lets pass gets what it "
            "would get if they were final, though nobody has heard their feedback."
        ),
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "allowance-min-p-of-one",
        "allowance.Allowance",
        'own < likeliest + payload.arrays["log_min_p"][:, None], -np.inf)',
        'own <= likeliest + payload.arrays["log_min_p"][:, None], -np.inf)',
        (
            "docs/contracts/modifier.md: A token whose log-probability is -inf is not drawn (and: A token "
            "that alone is left is drawn)."
        ),
        reason=(
            "A sampler was not asked what it draws with other options than those of its examples. It is, "
            "among few tokens that are left, also with the least and the greatest number that it takes."
        ),
        now="modifier.options_near_its_examples_are_served",
    ),
    Mutant(
        "allowance-keeps-ended-states",
        "allowance.Allowance",
        "        return State(wish)\n",
        (
            "        state = State(wish)\n"
            '        self.__dict__.setdefault("started", []).append(state)  # for a gauge of what texts '
            "have spent\n"
            "        return state\n"
        ),
        (
            "docs/contracts/modifier.md: After `release` nothing of the sequence is left: neither its state "
            "nor what was noted beside it."
        ),
        first="modifier.released_states_are_freed",
    ),
)
