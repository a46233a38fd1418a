"""Mistakes in `judged.plugins.few_bits`: weights rounded to a few bits, worker mixin."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "bits-one-counter-for-all",
        "few_bits.FakeQuant",
        (
            '    name = "fakequant"\n'
            "\n"
            "    def __init__(self, options: Mapping[str, Any]) -> None:\n"
            '        self._fakequant_options = parse_options(Options, options, where="worker.fakequant")\n'
            "        self._fakequant_layers: dict[str, Any] = {}\n"
            "        self._fakequant_kept: dict[str, Any] = {}\n"
            "        self._fakequant_errors: dict[str, float] = {}\n"
            "        self._fakequant_bits: int | None = None\n"
            "        self._fakequant_tokens: Counter[str] = Counter()\n"
        ),
        (
            '    name = "fakequant"\n'
            "    _fakequant_tokens: Counter[str] = Counter()\n"
            "\n"
            "    def __init__(self, options: Mapping[str, Any]) -> None:\n"
            '        self._fakequant_options = parse_options(Options, options, where="worker.fakequant")\n'
            "        self._fakequant_layers: dict[str, Any] = {}\n"
            "        self._fakequant_kept: dict[str, Any] = {}\n"
            "        self._fakequant_errors: dict[str, float] = {}\n"
            "        self._fakequant_bits: int | None = None\n"
        ),
        (
            "contracts/worker: 'Each worker has an object of its own: closing one leaves another, and "
            "its model, as they were, and what one has seen no other tells.'"
        ),
        first="worker.workers_do_not_share_what_they_see",
    ),
    Mutant(
        "bits-options-are-a-dict",
        "few_bits.FakeQuant",
        'parse_options(Options, options, where="worker.fakequant")',
        'parse_options(Options, {"by": "row"} | options, where="worker.fakequant")',
        "contracts/worker: 'options are any mapping.'",
        first="worker.takes_or_refuses_its_options",
    ),
    Mutant(
        "bits-one-bit",
        "few_bits.FakeQuant",
        "    bits: Annotated[int, Range(2, 8)] = 8\n",
        "    bits: Annotated[int, Range(1, 8)] = 8\n",
        (
            "contracts/worker: 'An option ... whose value is none that it can work with, is refused "
            "with InvalidConfiguration when it is built'"
        ),
        reason=(
            "Options had other values one at a time, and no method was called; now they have several "
            "at once, and methods answer."
        ),
        now="worker.takes_or_refuses_its_options",
    ),
    Mutant(
        "bits-restores-through-data",
        "few_bits.FakeQuant",
        "self._fakequant_layers[name].weight.copy_(weight)",
        "self._fakequant_layers[name].weight.data.copy_(weight)",
        (
            "contracts/worker: 'Once the model is loaded, weights are changed by assignment or in "
            "place under torch.no_grad, and not through .data, which an engine that keeps a copy of "
            "them does not see.'"
        ),
        first="worker.weights_change_in_the_open",
    ),
    Mutant(
        "bits-assigns-float32",
        "few_bits.FakeQuant",
        "                layer.weight.copy_(rounded)\n",
        "                layer.weight = torch.nn.Parameter(rounded, requires_grad=False)\n",
        (
            "contracts/worker: 'While a mixin is at work and after it closed, the model still runs, "
            "and gives logits of the same shape, whatever the type of its weights is, and whether it "
            "has biases or its head the weights of the embedding.'"
        ),
        reason="Public methods were not called on models of other types; now they are.",
        now="worker.leaves_the_model_usable",
    ),
    Mutant(
        "bits-common-names",
        "few_bits.FakeQuant",
        (
            "        self._fakequant_open = tuple(step.sequence_ids)\n"
            "\n"
            "    def after_step(self, step: WorkerStep) -> None:\n"
            "        self._fakequant_tokens[self._fakequant_mode] += step.num_tokens\n"
            "        self._fakequant_most = max(self._fakequant_most, len(set(self._fakequant_open)))\n"
            "        self._fakequant_open = ()\n"
        ),
        (
            "        self._ids = set(step.sequence_ids)\n"
            "\n"
            "    def after_step(self, step: WorkerStep) -> None:\n"
            "        self._fakequant_tokens[self._fakequant_mode] += step.num_tokens\n"
            "        self._fakequant_most = max(self._fakequant_most, len(self._ids))\n"
            "        self._ids = None\n"
        ),
        (
            "contracts/worker: 'Several mixins are one object, so a mixin works beside the attributes "
            "and in front of the methods of another.' and writing/worker: 'Put the mixin's name into "
            "each attribute and public method.'"
        ),
        reason=(
            "What a mixin makes on its object later than in __init__ was not looked at; now its name has to be its own."
        ),
        now="worker.works_in_one_object_with_others",
    ),
)
