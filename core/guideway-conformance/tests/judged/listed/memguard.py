"""Mistakes in `judged.plugins.memguard`: a guard of memory, a worker mixin."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "memguard-last-hook-only",
        "memguard.MemoryGuard",
        ("                self._memory_guard_hooks.append(module.register_forward_hook(self._memory_guard_look))\n"),
        ("                self._memory_guard_hooks = [module.register_forward_hook(self._memory_guard_look)]\n"),
        (
            "docs/contracts/worker.md: When a mixin has closed, the modules of the model have the "
            "hooks that they had before it, and no others."
        ),
        first="worker.takes_its_hooks_with_it",
    ),
    Mutant(
        "memguard-newcomers-of-any-step",
        "memguard.MemoryGuard",
        "            blamed = new or ids\n",
        ("            blamed = [each for each, steps in self._memory_guard_seen.items() if steps == 1] or ids\n"),
        (
            "docs/contracts/worker.md: A mixin that raises SequencesFailed names sequences of the "
            "step it was given, at least one, and goes on."
        ),
        reason="The largest step had 16,384 tokens, for which it ended nobody; now some have ten million.",
        now="worker.blames_sequences_of_its_step",
    ),
    Mutant(
        "memguard-nobody-is-new",
        "memguard.MemoryGuard",
        "            blamed = new or ids\n",
        "            blamed = new\n",
        (
            "docs/contracts/worker.md: A mixin that raises SequencesFailed names sequences of the "
            "step it was given, at least one, and goes on."
        ),
        reason="The largest step had 16,384 tokens, for which it ended nobody; now some have ten million.",
        now="worker.blames_sequences_of_its_step",
    ),
    Mutant(
        "memguard-counts-of-the-class",
        "memguard.MemoryGuard",
        (
            '    name = "memory_guard"\n'
            "\n"
            "    def __init__(self, options: Mapping[str, Any]) -> None:\n"
            "        self._memory_guard_options = parse_options(Options, options, "
            'where="worker.memory_guard")\n'
            "        self._memory_guard_hooks: list[Any] = []\n"
            "        self._memory_guard_seen: OrderedDict[str, int] = OrderedDict()\n"
            "        self._memory_guard_latencies: deque[float] = "
            "deque(maxlen=self._memory_guard_options.window)\n"
            "        self._memory_guard_began: float | None = None\n"
            "        self._memory_guard_width = 1\n"
            "        self._memory_guard_rows = 1\n"
            '        self._memory_guard_counts = {"steps": 0, "lost": 0, "refused": 0, "prefills": 0}\n'
        ),
        (
            '    name = "memory_guard"\n'
            '    _memory_guard_counts: dict[str, int] = {"steps": 0, "lost": 0, "refused": 0, "prefills": 0}\n'
            "\n"
            "    def __init__(self, options: Mapping[str, Any]) -> None:\n"
            "        self._memory_guard_options = parse_options(Options, options, "
            'where="worker.memory_guard")\n'
            "        self._memory_guard_hooks: list[Any] = []\n"
            "        self._memory_guard_seen: OrderedDict[str, int] = OrderedDict()\n"
            "        self._memory_guard_latencies: deque[float] = "
            "deque(maxlen=self._memory_guard_options.window)\n"
            "        self._memory_guard_began: float | None = None\n"
            "        self._memory_guard_width = 1\n"
            "        self._memory_guard_rows = 1\n"
        ),
        ("docs/contracts/worker.md: Each worker has an object of its own: ... what one has seen no other tells."),
        reason=(
            "Only names of sequences were looked for in the answers; now numbers that count for all objects are, too."
        ),
        now="worker.workers_do_not_share_what_they_see",
    ),
    Mutant(
        "memguard-reads-the-appends",
        "memguard.MemoryGuard",
        "        if step.num_rows and step.num_tokens // step.num_rows > 1:\n",
        "        if any(len(append.token_ids) > 1 for append in step.appends):\n",
        (
            "docs/contracts/worker.md: A mixin uses model, device, rank and num_workers of its "
            "worker, the three counts and the sequence ids of a step, and nothing else."
        ),
        first="worker.lives_through_a_run",
    ),
    Mutant(
        "memguard-steps-come-in-pairs",
        "memguard.MemoryGuard",
        '            self._memory_guard_counts["lost"] += 1  # the step before had no after_step\n',
        '            raise RuntimeError("a step began before the last one had ended")\n',
        (
            "docs/contracts/worker.md: After a step that failed in its forward pass, which has no "
            "after_step, before_step is called again."
        ),
        first="worker.survives_a_failed_step",
    ),
    Mutant(
        "memguard-tokens-per-row",
        "memguard.MemoryGuard",
        "        if step.num_rows and step.num_tokens // step.num_rows > 1:\n",
        "        if step.num_tokens // step.num_rows > 1:\n",
        ("docs/contracts/worker.md: A step may have any number of sequences and tokens, and may have no rows."),
        first="worker.survives_steps_of_any_size",
    ),
    Mutant(
        "memguard-ids-are-unique",
        "memguard.MemoryGuard",
        "        ids = list(dict.fromkeys(step.sequence_ids))  # a companion has its sequence's\n",
        (
            "        ids = list(dict.fromkeys(step.sequence_ids))\n"
            "        if len(ids) != step.num_sequences:\n"
            '            raise RuntimeError("a step has a sequence twice")\n'
        ),
        ("guideway.api docstring: WorkerStep.sequence_ids: A companion has that of the sequence it runs beside."),
        reason="No step had companions; now some have.",
        now="worker.survives_steps_of_any_size",
    ),
    Mutant(
        "memguard-keys-of-a-dict",
        "memguard.MemoryGuard",
        '            "sequences": list(self._memory_guard_seen),\n',
        '            "sequences": self._memory_guard_seen.keys(),\n',
        ("docs/contracts/worker.md: Results of its public methods pickle, because they go to another process."),
        first="worker.results_pickle",
    ),
    Mutant(
        "memguard-hook-of-the-whole-process",
        "memguard.MemoryGuard",
        (
            "        for module in worker.model.modules():\n"
            "            if not any(True for _ in module.children()):\n"
            "                "
            "self._memory_guard_hooks.append(module.register_forward_hook(self._memory_guard_look))\n"
        ),
        (
            "        from torch.nn.modules.module import register_module_forward_hook\n"
            "\n"
            "        self._memory_guard_hooks.append(register_module_forward_hook(self._memory_guard_look))\n"
        ),
        (
            "docs/contracts/worker.md: Each worker has an object of its own: closing one leaves "
            "another, and its model, as they were, and what one has seen no other tells."
        ),
        reason="No worker had a model of another size; now one has.",
        now="worker.workers_do_not_share_what_they_see",
    ),
    Mutant(
        "memguard-a-name-anybody-has",
        "memguard.MemoryGuard",
        "    def memory_guard_report(self)",
        "    def report(self)",
        (
            "docs/writing/worker.md: **Use unique names.** If two mixins define the same attribute "
            "or method, start-up fails and names both. Put the mixin's name into each attribute."
        ),
        reason=(
            "No sentence of the contract forbids it: names of its own are an advice, and guideway "
            "refuses two that are equal."
        ),
        correct=True,
    ),
    Mutant(
        "memguard-closes-the-next-one",
        "memguard.MemoryGuard",
        "    def close(self) -> None:\n",
        ("    def close(self) -> None:\n        super().close()\n"),
        "docs/writing/worker.md: **Do not call `super()`** in `__init__` or the life cycle",
        first="worker.speaks_for_itself_alone",
    ),
    Mutant(
        "memguard-one-id-as-many",
        "memguard.MemoryGuard",
        "                sequence_ids=blamed,\n",
        "                sequence_ids=blamed[0],\n",
        (
            "docs/contracts/worker.md: A mixin that raises SequencesFailed names sequences of the "
            "step it was given, at least one, and goes on."
        ),
        reason="The largest step had 16,384 tokens, for which it ended nobody; now some have ten million.",
        now="worker.blames_sequences_of_its_step",
    ),
)
