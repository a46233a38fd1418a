"""Mistakes in `judged.plugins.workers`: worker mixins."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "peak-hook-stays",
        "workers.Peak",
        ("            self._peak_hook.remove()\n            self._peak_hook = None\n"),
        ("            self._peak_hook = None\n"),
        "While a mixin is at work and after it closed, the model still runs (its hooks are removed).",
        reason="Only the shape of logits was looked at; now the hooks of the model's modules are too.",
        now="worker.takes_its_hooks_with_it",
    ),
    Mutant(
        "peak-tensor-report",
        "workers.Peak",
        ("largest = 0.0 if self._peak_of_all is None else float(self._peak_of_all)\n"),
        (
            "largest = 0.0 if self._peak_of_all is None else (lambda value=self._peak_of_all: value)\n"
            "        if callable(largest):\n"
            '            return {"largest": largest, "fits": False}\n'
        ),
        "Results of its public methods pickle.",
        first="worker.results_pickle",
    ),
    Mutant(
        "peak-no-rows",
        "workers.Peak",
        "self._peak_of_step = found.max() if found.numel() else None",
        "self._peak_of_step = found.max()",
        "A step may have no rows.",
        reason=("Steps without rows were announced, and the model computed some all the same; now it computes none."),
        now="worker.survives_steps_of_any_size",
    ),
    Mutant(
        "ledger-divides",
        "workers.Ledger",
        "share = step.num_tokens // step.num_sequences if step.num_sequences else 0",
        "share = step.num_tokens // step.num_rows",
        "A step may have any number of sequences and tokens, and may have no rows.",
        first="worker.survives_steps_of_any_size",
    ),
    Mutant(
        "ledger-blames-earlier",
        "workers.Ledger",
        (
            "            for sequence_id in dict.fromkeys(step.sequence_ids)\n"
            "            if self._ledger_of[sequence_id] > self._ledger_options.most_tokens"
        ),
        (
            "            for sequence_id in self._ledger_of\n"
            "            if self._ledger_of[sequence_id] > min(self._ledger_options.most_tokens, 64)"
        ),
        "A mixin that raises SequencesFailed names sequences of the step it was given.",
        reason="Steps had few tokens; now some have thousands, of other sequences than before.",
        now="worker.blames_sequences_of_its_step",
    ),
    Mutant(
        "ledger-class-state",
        "workers.Ledger",
        ("        self._ledger_of: dict[str, int] = {}\n"),
        (
            "        self._ledger_of: dict[str, int] = type(self).__dict__.get('_ledger_all') or {}\n"
            "        type(self)._ledger_all = self._ledger_of  # type: ignore[attr-defined]\n"
        ),
        "Each worker has an object of its own.",
        reason="What one worker's object saw was not looked for in another's answers; it is now.",
        now="worker.workers_do_not_share_what_they_see",
    ),
    Mutant(
        "ledger-request-id",
        "workers.Ledger",
        ("        for sequence_id in set(step.sequence_ids):\n"),
        ("        for sequence_id in set(getattr(step, 'request_ids', step.sequence_ids)):\n"),
        "A mixin uses the three counts and the sequence ids of a step, and nothing else.",
        first="worker.knows_only_what_the_contract_offers",
    ),
)
