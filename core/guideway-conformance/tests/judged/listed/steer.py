"""Mistakes in `judged.plugins.steer`: away from a companion."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "steer-padding-is-the-likeliest",
        "steer.Steer",
        "        likeliest, _ = ops.topk(ops.forbid_from(candidates, self.context.vocabulary_size), 1)\n",
        "        likeliest, _ = ops.topk(candidates, 1)\n",
        "contracts/modifier.md: The logits have as many columns as the vocabulary has tokens, or more.",
        reason=(
            "The columns past the vocabulary hold whatever the model gives until Stage.MASK, which the "
            "docstring of `logits_width` says now. That nothing looks at them is not promised: another "
            "correct plugin does."
        ),
        correct=True,
    ),
    Mutant(
        "steer-hidden-states-in-their-own-type",
        "steer.Steer",
        (
            "        hidden = step.hidden_states(rows) * ops.asarray(np.ones((1, 1), dtype=np.float32))\n"
            "        size = ops.where_rows(ops.gather(hidden, every), every, hidden < 0, -hidden)\n"
        ),
        (
            "        hidden = step.hidden_states(rows)\n"
            "        size = ops.where_rows(ops.gather(hidden, every), every, hidden < 0, -hidden)\n"
        ),
        (
            "contracts/modifier.md: Hidden states come in the model's own type, float16 and bfloat16 too, "
            "with a few that are a thousand times the others: rows get what they get of the same numbers in "
            "float32, but for rounding."
        ),
        reason=(
            "The rounding is within what the rule lets pass, but for a hidden state of zeros, which no model gives."
        ),
        correct=True,
    ),
    Mutant(
        "steer-negative-token-ids",
        "steer.Steer",
        "        if not wish.negative or not all(0 <= token_id < size for token_id in wish.negative):\n",
        "        if not wish.negative or max(wish.negative) >= size:\n",
        (
            "contracts/modifier.md: `companions` gives sequences to run beside each of a request, with "
            "prompts of the vocabulary."
        ),
        first="modifier.crowds_of_all_sorts",
    ),
    Mutant(
        "steer-forbidden-minus-forbidden",
        "steer.Steer",
        "        finite = ops.where_rows(ops.gather(own, every), every, own == -np.inf, 0.0)\n",
        "        finite = own\n",
        (
            "contracts/modifier.md: -inf stays -inf, also where the logits of a companion are: it is never "
            "made finite, nor NaN."
        ),
        first="modifier.forbidden_stays_forbidden",
    ),
    Mutant(
        "steer-nan-strength",
        "steer.Steer",
        "        if not 0 <= wish.strength <= self.settings.strongest:\n",
        "        if wish.strength < 0 or wish.strength > self.settings.strongest:\n",
        (
            "writing/modifier.md: A comparison with NaN is false, so write the range that is allowed (`not 0"
            " < x <= 10`), and not the one that is forbidden."
        ),
        first="modifier.options_near_its_examples_are_served",
    ),
    Mutant(
        "steer-returned-array-not-used",
        "steer.Steer",
        (
            '        guided = ops.where_rows(guided, every, own < likeliest + payload.arrays["margin"][:, '
            "None], -np.inf)\n"
        ),
        '        ops.where_rows(guided, every, own < likeliest + payload.arrays["margin"][:, None], -np.inf)\n',
        (
            "writing/modifier.md: Use the returned array of each operation, because some libraries have "
            "immutable arrays."
        ),
        first="modifier.runs_on_every_device",
    ),
    Mutant(
        "steer-report-of-the-whole-prompt",
        "steer.Steer",
        '        return {"strength": state.strength, "negative_tokens": len(state.negative)}\n',
        '        return {"strength": state.strength, "negative": list(state.negative)}\n',
        "docstring of LogitModifier.report: JSON, at most 4 KiB of it",
        reason="No option was long. Long texts and lists come now.",
        now="modifier.what_start_takes_is_served",
    ),
    Mutant(
        "steer-companions-keep-the-wish-on-the-instance",
        "steer.Steer",
        (
            "        wish = self.wish(request)\n"
            "        if wish is None:\n"
            "            return ()\n"
            "        prompt = wish.negative + request.prompt_token_ids if wish.prompt_follows else "
            "wish.negative\n"
        ),
        (
            "        self.asked = self.wish(request)\n"
            "        if self.asked is None:\n"
            "            return ()\n"
            "        negative = self.asked.negative\n"
            "        prompt = negative + request.prompt_token_ids if self.asked.prompt_follows else negative\n"
        ),
        (
            "docstring of LogitModifier.companions: Sequences to run beside each sequence of the request, "
            "asked once at its admission, from several threads at once"
        ),
        reason="`companions` was called by one thread alone. Another thread asks amid each of its lines now.",
        now="modifier.companions_serve_several_threads",
    ),
)
