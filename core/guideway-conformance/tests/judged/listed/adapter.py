"""Mistakes in `judged.plugins.adapter`: a low-rank adapter, a worker mixin."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "adapter-merged-through-data",
        "adapter.Adapter",
        (
            "            self._adapter_original = weight\n"
            "            self._adapter_head.weight = torch.nn.Parameter(merged, "
            "requires_grad=weight.requires_grad)\n"
        ),
        (
            "            self._adapter_original = torch.nn.Parameter(weight.clone(), "
            "requires_grad=weight.requires_grad)\n"
            "            weight.data.copy_(merged)\n"
        ),
        (
            "guideway.api docstring: WorkerMixin.on_model_loaded: Later only by assignment or in "
            "place under `torch.no_grad`, not through ``.data``: the engine may keep a copy arranged "
            "for the processor, and does not see that one."
        ),
        reason="How weights change was not looked at; it is now.",
        now="worker.weights_change_in_the_open",
    ),
    Mutant(
        "adapter-closed-while-merged",
        "adapter.Adapter",
        ("    def close(self) -> None:\n        self.adapter_unmerge()\n"),
        "    def close(self) -> None:\n",
        "docs/writing/worker.md: **Leave the model as you found it.**",
        reason="No sentence of the contract forbids it: a mixin may change weights.",
        correct=True,
    ),
    Mutant(
        "adapter-option-taken-out",
        "adapter.Adapter",
        "        self._adapter_on = self._adapter_options.enabled\n",
        '        self._adapter_on = options.pop("enabled", True)\n',
        (
            "docs/contracts/worker.md: The operator's options are the same mapping for every worker, "
            "so a mixin does not change them."
        ),
        reason="An option that was not set could be taken out unseen; now the mapping refuses it.",
        now="worker.options_are_left_alone",
    ),
    Mutant(
        "adapter-magnitudes-in-place",
        "adapter.Adapter",
        "            values = parameter.detach().float().abs()\n",
        "            values = parameter.detach().float().abs_()\n",
        "docs/writing/worker.md: **Leave the model as you found it.**",
        reason="No sentence of the contract forbids it: a mixin may change weights.",
        correct=True,
    ),
    Mutant(
        "adapter-calls-the-next-init",
        "adapter.Adapter",
        "        self._adapter_options = parse_options(",
        ("        super().__init__(options)\n        self._adapter_options = parse_options("),
        (
            "guideway.api docstring: WorkerMixin.__init__: Do not call ``super().__init__``: the "
            "host calls each mixin's."
        ),
        first="worker.speaks_for_itself_alone",
    ),
    Mutant(
        "adapter-switched-on-twice",
        "adapter.Adapter",
        "        if on and self._adapter_hook is None and self._adapter_head is not None:\n",
        "        if on and self._adapter_head is not None:\n",
        (
            "docs/contracts/worker.md: When a mixin has closed, the modules of the model have the "
            "hooks that they had before it, and no others."
        ),
        reason="No method that takes an argument was called; now those that take a bool are.",
        now="worker.takes_its_hooks_with_it",
    ),
    Mutant(
        "adapter-means-are-tensors",
        "adapter.Adapter",
        "            found[name] = float(values.mean()) if values.numel() else 0.0\n",
        "            found[name] = values.mean()\n",
        ("docs/writing/worker.md: Arguments and results must pickle, so return numbers and not device tensors."),
        reason="A tensor pickles; now results are searched for them.",
        now="worker.results_pickle",
    ),
    Mutant(
        "adapter-there-is-a-hook",
        "adapter.Adapter",
        ("        self._adapter_attach(False)\n        self._adapter_head = self._adapter_model = None\n"),
        ("        self._adapter_hook.remove()\n        self._adapter_head = self._adapter_model = None\n"),
        ("docs/contracts/worker.md: A worker that shuts down before its first step closes its mixins as well."),
        first="worker.workers_do_not_share_what_they_see",
    ),
    Mutant(
        "adapter-always-float32",
        "adapter.Adapter",
        "        self._adapter_up = torch.from_numpy(up).to(weight.device, weight.dtype)\n",
        "        self._adapter_up = torch.from_numpy(up).to(weight.device)\n",
        (
            "docs/contracts/worker.md: While a mixin is at work and after it closed, the model still "
            "runs, and gives logits of the same shape."
        ),
        reason="Every model was of float32; now one is of bfloat16.",
        now="worker.leaves_the_model_usable",
    ),
    Mutant(
        "adapter-largest-of-nothing",
        "adapter.Adapter",
        (
            "        if change.numel():\n"
            "            self._adapter_largest = max(self._adapter_largest, "
            "float(change.detach().abs().max()))\n"
        ),
        "        self._adapter_largest = max(self._adapter_largest, float(change.detach().abs().max()))\n",
        ("docs/contracts/worker.md: A step may have any number of sequences and tokens, and may have no rows."),
        first="worker.survives_steps_of_any_size",
    ),
)
