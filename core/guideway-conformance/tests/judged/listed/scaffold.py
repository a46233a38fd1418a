"""Mistakes in `judged.plugins.scaffold`: a text in a frame."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "sc-forbidden-unchecked",
        "scaffold.Scaffold",
        (
            "        if any(not 0 <= token_id < len(self.context.vocabulary) for token_id in"
            " wish.forbidden):\n"
            '            raise api.InvalidRequest("no token of the vocabulary",'
            ' field="modifiers.scaffold.forbidden")\n'
        ),
        "",
        (
            "modifier.py, start / compile: Raises `InvalidRequest` to refuse it ... compile: Raises"
            " what `start` may raise."
        ),
        reason="A value that no example has: outside what docs/conformance.md promises (Other options).",
        survives=True,
    ),
    Mutant(
        "sc-forces-one-more",
        "scaffold.Scaffold",
        "while len(found) < limit and",
        "while len(found) <= limit and",
        "modifier.py, forced: At most `limit` tokens that must come next.",
        first="modifier.forced_keeps_its_limit",
    ),
    Mutant(
        "sc-forces-past-the-end",
        "scaffold.Scaffold",
        "while len(found) < limit and not self.is_over(state, at) and (token_id",
        "while len(found) < limit and (token_id",
        "modifier.py, forced: `validate` lets them pass.",
        first="modifier.forced_is_all_that_is_left",
    ),
    Mutant(
        "sc-validate-by-the-frame-alone",
        "scaffold.Scaffold",
        (
            "            mask = self.allowed(state, at)\n"
            "            if self.is_over(state, at) or not int(mask[0, token_id // 32]) >> token_id"
            " % 32 & 1:"
        ),
        (
            "            wanted = self.only(state, at)\n"
            "            if self.is_over(state, at) or (wanted is not None and token_id != wanted):"
        ),
        "modifier.py, validate: Return how many of these drafts this modifier would let pass.",
        reason="`validate` was compared with nothing. It is with what the transform forbids, now.",
        now="modifier.validate_knows_what_is_forbidden",
    ),
    Mutant(
        "sc-key-without-closing",
        "scaffold.Scaffold",
        "wish.alphabet, wish.close_on\n",
        "wish.alphabet\n",
        (
            "contracts/modifier.md: Either of two requests with equal `compile_key`s may be given"
            " what was compiled for the other."
        ),
        reason="No text had the characters of the options. Texts that are written of them come now.",
        now="modifier.equal_keys_mean_equal_values",
    ),
    Mutant(
        "sc-alphabet-in-place",
        "scaffold.Scaffold",
        "self.alphabets[wish.alphabet].copy()",
        "self.alphabets[wish.alphabet]",
        (
            "contracts/modifier.md: The value of `compile` is a function of request and options:"
            " whatever was compiled before, and wherever."
        ),
        first="modifier.compile_is_a_function_of_the_request",
    ),
    Mutant(
        "sc-mask-of-the-vocabulary",
        "scaffold.Scaffold",
        "padded = np.zeros((1, self.context.vocabulary.logits_width), dtype=np.bool_)",
        "padded = np.zeros((1, len(inside)), dtype=np.bool_)",
        (
            "modifier.py, bitmask: ``int32[m, num_words(logits_width)]``; contracts/modifier.md: The"
            " logits have as many columns as the vocabulary has tokens, or more."
        ),
        first="modifier.any_width",
    ),
    Mutant(
        "sc-sign-of-a-word",
        "scaffold.Scaffold",
        "mask.view(np.uint32)[0, wanted // 32] = 1 << wanted % 32",
        "mask[0, wanted // 32] = 1 << wanted % 32",
        ("bitmask.py: Token ``t`` of a row is allowed exactly if ``bitmask[row, t // 32] >> (t % 32) & 1``."),
        reason="No example has such a sign. Texts of signs at the ends of words of a mask come now.",
        now="modifier.what_start_takes_is_served",
    ),
    Mutant(
        "sc-label-of-any-length",
        "scaffold.Scaffold",
        "if len(wish.label) > self.operator.max_label or not wish.label.isascii():",
        "if not wish.label.isascii():",
        "modifier.py, report: JSON, at most 4 KiB of it.",
        reason="A value that no example has: no longer texts were tried.",
        now="modifier.what_start_takes_is_served",
    ),
    Mutant(
        "sc-fork-is-the-same",
        "scaffold.Scaffold",
        "        return replace(state)\n",
        "        return state  # `State` is never changed\n",
        (
            "modifier.py, fork: An independent copy of `state`. An immutable state is shared by"
            " returning it [this one is not]."
        ),
        first="modifier.forks_are_independent",
    ),
    Mutant(
        "sc-forbids-padding-too",
        "scaffold.Scaffold",
        "        return step.ops.where_rows(logits, payload.rows, allowed == False, -np.inf)",
        (
            "        logits = step.ops.forbid_from(logits, self.context.vocabulary_size)\n"
            "        return step.ops.where_rows(logits, payload.rows, allowed == False, -np.inf)"
        ),
        "contracts/modifier.md: All rows but those of the payload keep their bits.",
        first="modifier.other_rows_stay",
    ),
    Mutant(
        "sc-draft-one-late",
        "scaffold.Scaffold",
        (
            "                    at = self.after(place, at, token_id)\n"
            "                    masks.append(self.allowed(place, at))\n"
        ),
        (
            "                    masks.append(self.allowed(place, at))\n"
            "                    at = self.after(place, at, token_id)\n"
        ),
        "modifier.py, prepare: The row after a draft is treated as if that draft were final.",
        first="modifier.forced_is_all_that_is_left",
    ),
    Mutant(
        "sc-nobody-acts",
        "scaffold.Scaffold",
        'return api.Payload(rows, {"allowed": np.concatenate(masks)}) if masks else None',
        'return api.Payload(rows, {"allowed": np.concatenate(masks)})',
        "modifier.py, prepare: None: nothing to apply / start: None leaves its rows alone.",
        first="modifier.payload_holds_a_step",
    ),
    Mutant(
        "sc-sorts-the-options",
        "scaffold.Scaffold",
        "        inside[list(wish.forbidden)] = False\n",
        (
            '        forbidden = request.params.modifiers[self.name].get("forbidden", [])\n'
            "        if isinstance(forbidden, list):\n"
            "            forbidden.sort()\n"
            "        inside[list(wish.forbidden)] = False\n"
        ),
        "contracts/modifier.md: `compile` and `compile_key` do not change the request.",
        reason="The lists were sorted already. They come in another order, too, now.",
        now="modifier.compile_leaves_the_request_alone",
    ),
)
