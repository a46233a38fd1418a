"""Mistakes in `judged.plugins.echo`: tokens of a short while ago."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "echo-squares-of-halves",
        "echo.Echo",
        "hidden = step.hidden_states(rows) + ops.asarray(self.wide)  #",
        "hidden = step.hidden_states(rows)  #",
        (
            "api/modifier.py: Step.hidden_states: in its own type: float32, float16 or bfloat16, whose "
            "sums of squares may overflow."
        ),
        first="modifier.hidden_states_of_any_type",
    ),
    Mutant(
        "echo-column-minus-one",
        "echo.Echo",
        "columns = ops.where_rows(ops.gather(before, every), every, missing, 0)  #",
        "columns = ops.gather(before, every)  #",
        (
            "api/device.py: ArrayOps: the effect of an index outside is undefined. So a modifier "
            "checks what it looks up."
        ),
        reason="NumPy counts from the end. The suite's devices refuse an index outside now.",
        now="modifier.runs_on_every_device",
    ),
    Mutant(
        "echo-position-of-the-first-row",
        "echo.Echo",
        "generated = batch.positions[rows] - np",
        "generated = batch.positions[batch.row_start[sequences]] - np",
        (
            "api/steps.py: StepBatch / LogitModifier.prepare: the row after a draft is treated as if "
            "that draft were final, or drafts would change the output."
        ),
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "echo-fading-changed-in-place",
        "echo.Echo",
        (
            '        values = counted * arrays["fading"] * amount[:, None]\n'
            "        values = ops.where_rows(values, every, missing, 0.0)\n"
        ),
        (
            '        fading = ops.where_rows(arrays["fading"], every, missing, 0.0)\n'
            "        values = counted * fading * amount[:, None]\n"
        ),
        "docs/contracts/modifier.md: A transform changes nothing of the payload or the step.",
        first="modifier.arguments_stay",
    ),
    Mutant(
        "echo-loop-over-rows",
        "echo.Echo",
        "        return ops.add_at(logits, each, columns.reshape(-1), values.reshape(-1))",
        (
            "        each = each.reshape(-1, WINDOW)\n"
            "        for i in range(len(payload)):\n"
            "            logits = ops.add_at(logits, each[i], columns[i], values[i])\n"
            "        return logits"
        ),
        "api/modifier.py: LogitTransform.apply: no wait for the device, no loop over rows.",
        first="modifier.loops_over_no_rows",
    ),
    Mutant(
        "echo-nan-strength",
        "echo.Echo",
        "if not -most <= wish.strength <= most or not",
        "if abs(wish.strength) > most or not",
        "docs/contracts/modifier.md: Results are logits, or log-probabilities: numbers or -inf, no NaN.",
        reason="A value that no example has. Values of the types that options are read as come now.",
        now="modifier.options_near_its_examples_are_served",
    ),
    Mutant(
        "echo-weights-by-slot",
        "echo.Echo",
        ("        fading = np.stack([state.fading for state in acting])\n"),
        (
            '        known = self.__dict__.setdefault("known", {})\n'
            "        fading = np.stack([known.setdefault(int(batch.slots[i]), states[i]).fading for i in sequences])\n"
        ),
        (
            "docs/contracts/modifier.md: To let go of one sequence is nothing to the others, nor to "
            "who has its slot next."
        ),
        first="modifier.release_ends_one_sequence",
    ),
    Mutant(
        "echo-sixteen-bit-position",
        "echo.Echo",
        ("generated = batch.positions[rows] - np.array([state.prompt_length for state in acting], dtype=np.int32)"),
        ("generated = (batch.positions[rows] - np.array([state.prompt_length for state in acting])).astype(np.int16)"),
        ("docs/contracts/modifier.md: A sequence may fill the context to `max_model_len`, past position 65,536 too."),
        reason="Long sequences were long prompts. Generated tokens pass 65,536 now.",
        now="modifier.no_count_is_too_large",
    ),
    Mutant(
        "echo-strength-of-the-neighbor",
        "echo.Echo",
        ('                "strength": np.array([state.wish.strength for state in acting], dtype=np.float32),'),
        (
            '                "strength": np.resize(\n'
            "                    np.repeat(\n"
            "                        np.array([s.wish.strength if s else 0 for s in states], dtype=np.float32),\n"
            "                        np.diff(batch.row_start),\n"
            "                    ),\n"
            "                    len(rows),\n"
            "                ),"
        ),
        "docs/contracts/modifier.md: A row gets the same whatever other rows are in its batch.",
        first="modifier.company_changes_nothing",
    ),
    Mutant(
        "echo-added-in-float32",
        "echo.Echo",
        "return ops.add_at(logits, each,",
        "return ops.add_at(logits + ops.asarray(self.wide), each,",
        ("docs/contracts/modifier.md: `apply` returns the logits: an array of the same library, shape and dtype."),
        first="modifier.half_precision_stays",
    ),
)
