"""Mistakes in `judged.plugins.nan_watch`: numbers that are not finite, worker mixin."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "nan-cleared-too-late",
        "nan_watch.NanWatch",
        (
            "    def before_step(self, step: WorkerStep) -> None:\n"
            "        self._nanwatch_finite = []  # what a step that failed left behind\n"
            "        self._nanwatch_top = []\n"
            "\n"
            "    def _nanwatch_look(self, module: Any, arguments: tuple[Any, ...]) -> None:\n"
            "        hidden = arguments[0].detach()\n"
            "        if hidden.numel():\n"
            "            self._nanwatch_finite.append(hidden.isfinite().all())\n"
            "            self._nanwatch_top.append(hidden.abs().max())\n"
            "\n"
            "    def after_step(self, step: WorkerStep) -> None:\n"
            "        self._nanwatch_steps += 1\n"
            "        self._nanwatch_rows += step.num_rows\n"
            "        bad = not all(bool(flag) for flag in self._nanwatch_finite)\n"
        ),
        (
            "    def _nanwatch_look(self, module: Any, arguments: tuple[Any, ...]) -> None:\n"
            "        hidden = arguments[0].detach()\n"
            "        if hidden.numel():\n"
            "            self._nanwatch_finite.append(hidden.isfinite().all())\n"
            "            self._nanwatch_top = [hidden.abs().max()]\n"
            "\n"
            "    def after_step(self, step: WorkerStep) -> None:\n"
            "        self._nanwatch_steps += 1\n"
            "        self._nanwatch_rows += step.num_rows\n"
            "        flags, self._nanwatch_finite = self._nanwatch_finite, []\n"
            "        bad = not all(bool(flag) for flag in flags)\n"
        ),
        (
            "contracts/worker: 'After a step that failed in its forward pass, which has no after_step, "
            "before_step is called again, and what came of that one is not held against the sequences of the next.'"
        ),
        reason="Passes failed where the head would begin; now also in it, behind it, and elsewhere.",
        now="worker.survives_a_failed_step",
    ),
    Mutant(
        "nan-blames-suspects",
        "nan_watch.NanWatch",
        "        names = tuple(dict.fromkeys(step.sequence_ids))\n",
        (
            '        suspects = [*getattr(self, "_nanwatch_suspects", ()), *step.sequence_ids]\n'
            "        self._nanwatch_suspects = names = tuple(dict.fromkeys(suspects))\n"
        ),
        (
            "contracts/worker: 'A mixin that raises SequencesFailed names sequences of the step it was "
            "given, at least one, and goes on, whatever numbers the model computes.'"
        ),
        first="worker.blames_sequences_of_its_step",
    ),
    Mutant(
        "nan-resumes-after-closing",
        "nan_watch.NanWatch",
        ("        self.nanwatch_pause()\n        self._nanwatch_head = None\n"),
        "        self.nanwatch_pause()\n",
        (
            "contracts/worker: 'When a mixin has closed, the modules of the model have the hooks that "
            "they had before it, and no others, whatever its public methods were asked for, before "
            "that or after it.'"
        ),
        first="worker.takes_its_hooks_with_it",
    ),
    Mutant(
        "nan-reports-tensors",
        "nan_watch.NanWatch",
        "self._nanwatch_peaks.append(max(float(top) for top in self._nanwatch_top))",
        "self._nanwatch_peaks.append(max(self._nanwatch_top))",
        (
            "contracts/worker: 'Results of its public methods pickle, because they go to another "
            "process, and hold no tensors, whose device that one may not have.'"
        ),
        first="worker.results_pickle",
    ),
    Mutant(
        "nan-counts-appends",
        "nan_watch.NanWatch",
        'a number of {step.num_tokens} tokens is not finite"',
        'a number of {len(step.appends)} prompts is not finite"',
        (
            "contracts/worker: 'A mixin uses model, device, rank and num_workers of its worker, the "
            "three counts and the sequence ids of a step, and nothing else.'"
        ),
        first="worker.blames_sequences_of_its_step",
    ),
    Mutant(
        "nan-ignores-unknown-options",
        "nan_watch.NanWatch",
        'parse_options(Options, options, where="worker.nanwatch")',
        (
            "parse_options(\n"
            "            Options,\n"
            '            {key: options[key] for key in ("end", "window", "patience") if key in options},\n'
            '            where="worker.nanwatch",\n'
            "        )"
        ),
        (
            "contracts/worker: 'An option that a mixin does not know, or whose value is none that it "
            "can work with, is refused with InvalidConfiguration when it is built'"
        ),
        first="worker.takes_or_refuses_its_options",
    ),
)
