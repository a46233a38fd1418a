"""Mistakes in `judged.plugins.tailfree`: tail-free truncation."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "tf-position-of-the-sequence",
        "tailfree.TailFree",
        "batch.positions[rows] - np",
        "batch.positions[batch.row_start[sequences]] - np",
        (
            "modifier.py, prepare: The row after a draft is treated as if that draft were final"
            " (`StepBatch.drafts`), or drafts would change the output."
        ),
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "tf-history-of-entries",
        "tailfree.TailFree",
        "step.history(rows)",
        "step.history(entries)",
        "contracts/modifier.md: A row gets the same whatever other rows are in its batch.",
        first="modifier.any_partition_of_rows",
    ),
    Mutant(
        "tf-total-of-the-batch",
        "tailfree.TailFree",
        "(bend.sum(axis=1) + 1e-20)[:, None]",
        "(bend.sum() + 1e-20)",
        "steps.py, Payload: a transform must treat each entry on its own.",
        first="modifier.derived_states_do_not_move",
    ),
    Mutant(
        "tf-rare-is-finite",
        "tailfree.TailFree",
        "rare * may_go, -np.inf)",
        "rare * may_go, -1e9)",
        "writing/modifier.md: *never make -inf finite*.",
        first="modifier.forbidden_stays_forbidden",
    ),
    Mutant(
        "tf-prompt-of-the-first",
        "tailfree.TailFree",
        "np.array([state.prompt_length for state in acting], dtype=np.int32)",
        "acting[0].prompt_length",
        "contracts/modifier.md: A row gets the same whatever other rows are in its batch.",
        first="modifier.order_changes_nothing",
    ),
    Mutant(
        "tf-acts-unasked",
        "tailfree.TailFree",
        "request.params.modifiers.get(self.name)",
        "request.params.modifiers.get(self.name, {})",
        (
            "writing/modifier.md: `start` returns None for a request that does not use the modifier."
            " The rows of that request stay bit-identical."
        ),
        reason="A state for a request that does not select it is allowed: docs/contracts says so.",
        correct=True,
    ),
    Mutant(
        "tf-empty-options-are-none",
        "tailfree.TailFree",
        "if options is None:",
        "if not options:",
        (
            "modifier.py, start: A request that selects this modifier has its options in"
            " ``request.params.modifiers[name]``, a mapping. / None leaves its rows alone."
        ),
        reason="That one example did nothing was not seen beside others. Each by itself has to act now.",
        now="modifier.every_example_acts",
    ),
    Mutant(
        "tf-arange-kept",
        "tailfree.TailFree",
        "entries = ops.asarray(np.arange(len(payload), dtype=np.int32))",
        ('entries = self.__dict__.setdefault("entries", ops.asarray(np.arange(len(payload), dtype=np.int32)))'),
        "modifier.py, LogitTransform: Pure: what it returns depends on its arguments alone.",
        first="modifier.keeps_copies",
    ),
    Mutant(
        "tf-looks-whether-loops-are-wanted",
        "tailfree.TailFree",
        'loops = (history == history[:, -1:]).sum(axis=1) >= arrays["loop"]',
        (
            'wanted = bool((arrays["loop"] <= self.history_length).sum() > 0)\n'
            '        loops = (history == history[:, -1:]).sum(axis=1) >= arrays["loop"] if wanted'
            ' else arrays["loop"] < 0'
        ),
        "modifier.py, apply: No wait for the device, no loop over rows.",
        first="modifier.waits_for_no_device",
    ),
    Mutant(
        "tf-keeps-one-more",
        "tailfree.TailFree",
        '(arrays["min_keep"] - 1)[:, None]',
        'arrays["min_keep"][:, None]',
        (
            "device.py, ArrayOps: The effect of an index outside is undefined. ... so a modifier"
            " checks on the host what it looks up."
        ),
        reason="A value that no example has. The greatest that is taken comes now.",
        now="modifier.options_near_its_examples_are_served",
    ),
    Mutant(
        "tf-operator-options-unread",
        "tailfree.TailFree",
        '        api.parse_options(NoOptions, options, where="modifier.tailfree")\n',
        "",
        (
            "writing/modifier.md: a wrong one is then refused when the host starts. A modifier that"
            " takes none calls it with a dataclass without fields."
        ),
        reason="Only docs/writing said so. A rule does now, for modifiers with a constructor of their own.",
        now="modifier.operators_options_are_known",
    ),
    Mutant(
        "tf-claims-idempotent",
        "tailfree.TailFree",
        "history_length: ClassVar = 16\n",
        ("history_length: ClassVar = 16\n    idempotent: ClassVar = True\n"),
        (
            "modifier.py, idempotent: True if applying it again, after a call that ended or that"
            " failed halfway, gives what one call gives."
        ),
        first="modifier.applied_again_it_changes_nothing",
    ),
    Mutant(
        "tf-history-too-short",
        "tailfree.TailFree",
        "history_length: ClassVar = 16\n",
        "history_length: ClassVar = 0\n",
        (
            "contracts/modifier.md: A transform whose modifier needs the history says how many"
            " earlier token ids it holds."
        ),
        first="modifier.history_has_a_length",
    ),
)
