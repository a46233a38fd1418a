"""Mistakes in `judged.plugins.fakequant`: weights rounded as int8 holds them, worker mixin."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "quant-data",
        "fakequant.FakeQuant",
        "                weight.copy_(rounded)  # in the type that the weight has\n",
        "                weight.data.copy_(rounded)  # in the type that the weight has\n",
        (
            "contracts/worker.md: Once the model is loaded, weights are changed by assignment or in "
            "place under `torch.no_grad`, and not through ``.data``"
        ),
        first="worker.weights_change_in_the_open",
    ),
    Mutant(
        "quant-one-name-for-a-list",
        "fakequant.FakeQuant",
        "    def __init__(self, options: Mapping[str, Any]) -> None:\n",
        (
            "    def __init__(self, options: Mapping[str, Any]) -> None:\n"
            '        if isinstance(options.get("skip"), str):  # one name alone\n'
            '            options["skip"] = [options["skip"]]\n'
        ),
        (
            "contracts/worker.md: The operator's options are the same mapping for every worker, so a "
            "mixin does not change them, nor takes out what may be in them."
        ),
        reason=(
            "Options had the values of the settings; now each field of their dataclass has others, right and wrong."
        ),
        now="worker.options_are_left_alone",
    ),
    Mutant(
        "quant-tokens-a-row",
        "fakequant.FakeQuant",
        "        bits = self._fakequant_bits\n",
        ("        bits = self._fakequant_bits\n        self._fakequant_width = step.num_tokens / step.num_rows\n"),
        ("contracts/worker.md: A step may have any number of sequences and tokens, may have no rows"),
        first="worker.survives_steps_of_any_size",
    ),
    Mutant(
        "quant-never-loaded",
        "fakequant.FakeQuant",
        ("        if self._fakequant_model is None:\n            return 0\n"),
        "",
        (
            "api/worker.py, WorkerMixin.close: Once, when the worker shuts down or fails to start, "
            "with or without `on_model_loaded` before it."
        ),
        reason="A model was always loaded before the mixin closed; the rule says now that it may not be.",
        now="worker.closes_without_a_step",
    ),
    Mutant(
        "quant-each-name-once",
        "fakequant.FakeQuant",
        "            self._fakequant_lost_steps += 1\n",
        (
            "            self._fakequant_lost_steps += 1\n"
            "        for _ in zip(dict.fromkeys(step.sequence_ids), range(step.num_sequences), "
            "strict=True):\n"
            '            self._fakequant_sequences = getattr(self, "_fakequant_sequences", 0) + 1\n'
        ),
        (
            "contracts/worker.md: A step [...] has the name of a sequence more than once if there "
            "are companions beside it."
        ),
        first="worker.survives_steps_of_any_size",
    ),
    Mutant(
        "quant-kept-by-the-class",
        "fakequant.FakeQuant",
        (
            "\n"
            "    def __init__(self, options: Mapping[str, Any]) -> None:\n"
            "        self._fakequant_options = parse_options(Options, options, "
            'where="worker.fakequant")\n'
            "        self._fakequant_model: Any = None\n"
            "        self._fakequant_worker = (0, 1)\n"
            "        self._fakequant_kept: dict[str, Any] = {}\n"
        ),
        (
            "    _fakequant_kept: dict[str, Any] = {}\n"
            "\n"
            "    def __init__(self, options: Mapping[str, Any]) -> None:\n"
            "        self._fakequant_options = parse_options(Options, options, "
            'where="worker.fakequant")\n'
            "        self._fakequant_model: Any = None\n"
            "        self._fakequant_worker = (0, 1)\n"
        ),
        (
            "contracts/worker.md: Each worker has an object of its own: closing one leaves another, "
            "and its model, as they were"
        ),
        first="worker.workers_do_not_share_what_they_see",
    ),
)
