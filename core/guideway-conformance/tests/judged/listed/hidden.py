"""Mistakes in `judged.plugins.hidden`: a probe and guidance."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "probe-overflows",
        "hidden.Probe",
        "scaled = hidden / (largest + 1e-20)",
        "scaled = step.hidden_states(rows) / 1.0",
        "Hidden states come in float16 and bfloat16 too, whose sums of squares may overflow.",
        first="modifier.hidden_states_of_any_type",
    ),
    Mutant(
        "probe-mean-of-call",
        "hidden.Probe",
        ('        step.emit("score", score)\n'),
        ('        score = score - 0.1 * score.sum(axis=0) / len(payload)\n        step.emit("score", score)\n'),
        "An emitted entry depends on that entry alone, whatever else is in the call.",
        first="modifier.any_partition_of_rows",
    ),
    Mutant(
        "probe-first-feedback",
        "hidden.Probe",
        'for score in feedback["score"].tolist():',
        'for score in feedback["score"].tolist()[:1]:',
        "Tokens accepted in one step lead where they lead one by one, feedback too.",
        reason="No modifier with feedback was given several tokens in a step; there is a check now.",
        now="modifier.feedback_comes_for_steps_of_any_size",
    ),
    Mutant(
        "probe-keeps-feedback",
        "hidden.Probe",
        ("            state.sum += score\n"),
        (
            "            state.sum += score\n"
            "            state.__dict__['kept'] = feedback['score']\n"
            "            state.strikes += bool(state.__dict__['kept'].sum() > 1e3)\n"
        ),
        "None: what is kept is read at once.",
        correct=True,
    ),
    Mutant(
        "probe-reads-old-feedback",
        "hidden.Probe",
        ('        for score in feedback["score"].tolist():\n'),
        (
            "        old = state.__dict__.get('kept')\n"
            "        state.__dict__['kept'] = feedback['score']\n"
            "        state.sum += 0.0 if old is None else float(old[0])\n"
            '        for score in feedback["score"].tolist():\n'
        ),
        "The host may overwrite feedback after accept: keep copies.",
        reason=("Only payloads were compared after the host had overwritten feedback, and not reports; both are now."),
        now="modifier.keeps_copies",
    ),
    Mutant(
        "probe-no-feedback-raises",
        "hidden.Probe",
        ("        if feedback is None:\n            return CONTINUE\n"),
        ("        assert feedback is not None\n"),
        "feedback is None where the transform did not act on every one of these rows.",
        reason="Feedback was never missing; there is a check now.",
        now="modifier.feedback_may_be_missing",
    ),
    Mutant(
        "probe-emits-double",
        "hidden.Probe",
        'step.emit("score", score)',
        'step.emit("score", score + np.zeros(1))',
        "A transform emits all of its emits, of the declared shape and dtype.",
        first="modifier.waits_for_no_device",
    ),
    Mutant(
        "probe-emits-all-rows",
        "hidden.Probe",
        'step.emit("score", score)',
        'step.emit("score", score[:, None])',
        "A transform emits all of its emits, of the declared shape and dtype.",
        first="modifier.takes_a_step",
    ),
    Mutant(
        "probe-scale-negative",
        "hidden.Probe",
        'return ops.scale_rows(logits, rows, 1.0 - payload.arrays["damp"] * score)',
        'return ops.scale_rows(logits, rows, 1.0 - 4.0 * payload.arrays["damp"] * score)',
        "-inf stays -inf (the factor may be zero or less).",
        first="modifier.forbidden_stays_forbidden",
    ),
    Mutant(
        "probe-state-of-worker",
        "hidden.Probe",
        ('        step.emit("score", score)\n'),
        (
            "        before = self.__dict__.get('before', 0.0)\n"
            "        self.__dict__['before'] = 0.5 * score.sum(axis=0)\n"
            '        step.emit("score", score + 0.0 * before)\n'
            "        score = score + 0.001 * before * (len(payload) > 2)\n"
        ),
        "The result of a transform depends on its arguments alone.",
        first="modifier.any_partition_of_rows",
    ),
    Mutant(
        "against-companion-of-first",
        "hidden.Against",
        "other = ops.gather(logits, step.companion_rows[rows][:, 0])",
        "other = ops.gather(logits, step.companion_rows[: len(payload)][:, 0])",
        "Companion rows are those of each row of the logits, and a payload may speak of some rows only.",
        first="modifier.any_partition_of_rows",
    ),
    Mutant(
        "against-nan",
        "hidden.Against",
        "return ops.where_rows(logits, rows, usable, guided)",
        ('return ops.where_rows(logits, rows, True, own + payload.arrays["weight"][:, None] * (own - other))'),
        "-inf stays -inf: it is never made finite, nor NaN.",
        reason="Companions' logits were finite; they have -inf now where the model itself has it.",
        now="modifier.forbidden_stays_forbidden",
    ),
    Mutant(
        "against-companions-for-all",
        "hidden.Against",
        "return () if wish is None else (Companion(prompt_token_ids=wish.prompt),)",
        "return (Companion(prompt_token_ids=wish.prompt if wish else (97,)),)",
        "A request the modifier leaves alone has no companions.",
        first="modifier.no_companions_for_others",
    ),
)
