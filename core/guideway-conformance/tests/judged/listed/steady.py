"""Mistakes in `judged.plugins.steady`: a sampler that steers towards a probability."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "steady-fork-shares-histogram",
        "steady.Steady",
        "entropies=state.entropies.copy(), likely=list(state.likely))",
        "entropies=state.entropies.copy())",
        ("docs/contracts/modifier.md: A fork is independent: what parent or fork accept is nothing to the other."),
        reason="Reports of a fork and its parent were not compared where there is feedback.",
        now="modifier.forks_are_independent",
    ),
    Mutant(
        "steady-fork-unbounded-window",
        "steady.Steady",
        "entropies=state.entropies.copy(), ",
        "entropies=deque(state.entropies), ",
        ("docs/contracts/modifier.md: A forked state is a copy, however late: it gives what its parent gives."),
        reason="No fork went on beside its parent with feedback. Both go on now.",
        now="modifier.forks_go_on_as_their_parent",
    ),
    Mutant(
        "steady-noise-looked-at-after-the-step",
        "steady.Steady",
        ("            state.entropies.append(entropy)\n            if 0 < wish.patience"),
        ("            state.entropies.append(entropy)\n        else:\n            if 0 < wish.patience"),
        (
            "docs/writing/modifier.md: Several tokens may come in a step, with the feedback of each in "
            "order. State, outcome and report are then those of the same tokens one by one."
        ),
        reason="Steps had as many tokens as `validate` let pass, and none went past an end. Both are so now.",
        now="modifier.feedback_comes_for_steps_of_any_size",
    ),
    Mutant(
        "steady-feedback-numbers-of-numpy",
        "steady.Steady",
        'zip(feedback["probability"].tolist(), feedback',
        'zip(feedback["probability"], feedback',
        "docs/contracts/modifier.md: `report` gives None or a mapping of JSON.",
        first="modifier.replay_rebuilds_the_state",
    ),
    Mutant(
        "steady-emits-by-row-not-entry",
        "steady.Steady",
        ("ops.gather(p, every, drawn[:, None])[:, 0])\n        return"),
        ("ops.gather(p, payload.rows, drawn[:, None])[:, 0])\n        return"),
        ("docs/contracts/modifier.md: An emitted entry depends on that entry alone, whatever else is in the call."),
        first="modifier.payload_holds_a_step",
    ),
    Mutant(
        "steady-floor-hides-forbidden",
        "steady.Steady",
        "kept = ops.where_rows(ops.gather(own, every), every, own > -np.inf, score)",
        "kept = ops.gather(score, every)",
        "api/modifier.py: Sampler.sample: a token whose log-probability is -inf must not be drawn.",
        first="modifier.draws_no_forbidden_token",
    ),
    Mutant(
        "steady-validate-lets-pass",
        "steady.Steady",
        "return 0  # the aim after a draft depends on its probability",
        "return len(token_ids)",
        (
            "docs/contracts/modifier.md: A row after as many drafts as `validate` lets pass gets what "
            "it would get if they were final, so that drafts never change the distribution."
        ),
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "steady-payload-buffer-reused",
        "steady.Steady",
        (
            "        return Payload(\n"
            "            rows,\n"
            "            {\n"
            '                "aim": np.array([state.aim for state in acting], dtype=np.float32),'
        ),
        (
            '        aims = self.__dict__.setdefault("aims", np.empty(65536, dtype=np.float32))[: len(acting)]\n'
            "        aims[:] = [state.aim for state in acting]\n"
            "        return Payload(\n"
            "            rows,\n"
            "            {\n"
            '                "aim": aims,'
        ),
        ("api/steps.py: Payload: the arrays may be reused by the modifier from the second `prepare` after on."),
        first="modifier.payload_holds_a_step",
    ),
    Mutant(
        "steady-likeliest-of-the-call",
        "steady.Steady",
        "likeliest, _ = ops.topk(p, 1)",
        "likeliest, _ = ops.topk(p.reshape(1, -1), 1)",
        "docs/contracts/modifier.md: A row gets the same whatever other rows are in its batch.",
        first="modifier.draws_nothing_forbidden_at_the_extremes",
    ),
    Mutant(
        "steady-operator-options-unread",
        "steady.Steady",
        (
            "        super().__init__(options, context)\n"
            '        parse_options(Settings, options, where="modifier.steady")'
        ),
        "        super().__init__(options, context)",
        (
            "docs/writing/modifier.md: A modifier that takes none calls it with a dataclass without "
            "fields: a wrong one is then refused when the host starts."
        ),
        reason="Only docs/writing said so. A rule does now, for modifiers with a constructor of their own.",
        now="modifier.operators_options_are_known",
    ),
)
