"""Mistakes in `judged.plugins.greenlist`: a mark of green lists."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "greenlist-history-of-short-sequences",
        "greenlist.Greenlist",
        "        history = step.history(rows) + 1\n",
        "        history = step.history(rows)\n",
        (
            "docs/writing/modifier.md: check each index that you compute from what was generated. Devices "
            "do not: -1 or one past the end is undefined. (api: history: -1 where the sequence is shorter)"
        ),
        first="modifier.prompts_may_be_short",
    ),
    Mutant(
        "greenlist-drafts-share-the-first-position",
        "greenlist.Greenlist",
        "np.where(batch.positions[rows] >= first, delta, np.float32(0))",
        "np.where(batch.positions[batch.row_start[sequences]] >= first, delta, np.float32(0))",
        (
            "api: LogitModifier.prepare: The row after a draft is treated as if that draft were final, or "
            "drafts would change the output."
        ),
        first="modifier.drafts_change_nothing",
    ),
    Mutant(
        "greenlist-salted-hash",
        "greenlist.Greenlist",
        "        random = np.random.default_rng([settings.key, settings.buckets])\n",
        ('        random = np.random.default_rng(abs(hash(f"greenlist/{settings.key}/{settings.buckets}")))\n'),
        (
            "docs/contracts/modifier.md: In another process the same requests and tokens lead to the same, "
            "so that state can be rebuilt anywhere."
        ),
        first="modifier.any_process",
    ),
    Mutant(
        "greenlist-operator-typo-is-taken",
        "greenlist.Greenlist",
        (
            "        super().__init__(options, context)\n"
            '        api.parse_options(Settings, options, where="modifier.greenlist")\n'
        ),
        (
            "        super().__init__(options, context)\n"
            '        known = {name: options[name] for name in ("key", "gamma", "buckets") if name in '
            "options}\n"
            '        api.parse_options(Settings, known, where="modifier.greenlist")\n'
        ),
        (
            "docs/contracts/modifier.md: A modifier with a constructor of its own refuses an operator's "
            "option that it does not know with `InvalidConfiguration`."
        ),
        reason=("The transform refuses it, and the suite built both halves. It builds the modifier alone now."),
        now="modifier.operators_options_are_known",
    ),
    Mutant(
        "greenlist-tables-of-another-vocabulary",
        "greenlist.Greenlist",
        (
            "        self.green = np.zeros((settings.buckets, context.logits_width), dtype=np.float32)\n"
            "        for bucket in self.green:\n"
            "            bucket[random.permutation(context.vocabulary_size)[:num_green]] = 1\n"
        ),
        (
            '        made = GreenlistTransform.__dict__.get("made", {})\n'
            "        if (settings, context.logits_width) not in made:\n"
            "            green = np.zeros((settings.buckets, context.logits_width), dtype=np.float32)\n"
            "            for bucket in green:\n"
            "                bucket[random.permutation(context.vocabulary_size)[:num_green]] = 1\n"
            "            made = {**made, (settings, context.logits_width): green}\n"
            "            GreenlistTransform.made = made\n"
            "        self.green = made[settings, context.logits_width]\n"
        ),
        (
            "docs/contracts/modifier.md: A process may have instances of several vocabularies: what one "
            "finds in its own is nothing to another."
        ),
        reason=(
            "The vocabularies side by side were of one size. One of another size has logits of the same width now."
        ),
        now="modifier.any_vocabulary_beside_another",
    ),
)
