"""Mistakes in `judged.plugins.finite_guard`: ends sequences whose logits are not finite, worker."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "fg-or-of-several-calls",
        "finite_guard.FiniteGuard",
        (
            "        self._finite_guard_bad = ~(top <= self._finite_guard_options.limit)\n"
            "        largest = torch.nan_to_num(top, nan=0.0, posinf=0.0).max()\n"
            "        known = self._finite_guard_largest\n"
            "        self._finite_guard_largest = largest if known is None else torch.maximum(known, largest)\n"
            "\n"
            "    def before_step(self, step: WorkerStep) -> None:\n"
            "        self._finite_guard_bad = None  # what a step that failed has left\n"
            "\n"
        ),
        (
            "        bad, before = ~(top <= self._finite_guard_options.limit), self._finite_guard_bad\n"
            "        # a head may be called twice in a step\n"
            "        self._finite_guard_bad = bad if before is None or before.shape != bad.shape else before "
            "| bad\n"
            "        largest = torch.nan_to_num(top, nan=0.0, posinf=0.0).max()\n"
            "        known = self._finite_guard_largest\n"
            "        self._finite_guard_largest = largest if known is None else torch.maximum(known, largest)\n"
            "\n"
        ),
        (
            "contracts/worker.md: After a step that failed in its forward pass ... what came of that one is "
            "not held against the sequences of the next."
        ),
        first="worker.survives_a_failed_step",
    ),
    Mutant(
        "fg-blames-all-with-strikes",
        "finite_guard.FiniteGuard",
        (
            "            for name in failed:\n"
            "                strikes.pop(name, None)\n"
            "            self._finite_guard_ended += len(failed)\n"
            '            raise SequencesFailed("the model\'s logits are not finite", sequence_ids=tuple(failed))\n'
        ),
        (
            "            failed = list(strikes)\n"
            "            strikes.clear()\n"
            "            self._finite_guard_ended += len(failed)\n"
            '            raise SequencesFailed("the model\'s logits are not finite", sequence_ids=tuple(failed))\n'
        ),
        (
            "contracts/worker.md: A mixin that raises SequencesFailed names sequences of the step it was "
            "given, at least one, and goes on, whatever numbers the model computes."
        ),
        reason=(
            "Of an option of whole numbers the smallest and the largest value were tried, and no count of a "
            "few; 1 and 2 are now, in steps that sequences leave and come back to."
        ),
        now="worker.blames_sequences_of_its_step",
    ),
    Mutant(
        "fg-no-rows",
        "finite_guard.FiniteGuard",
        ("        if rows.shape[0] == 0:\n            self._finite_guard_bad = None\n            return\n"),
        "",
        "contracts/worker.md: A step may have any number of sequences and tokens, may have no rows",
        first="worker.survives_steps_of_any_size",
    ),
    Mutant(
        "fg-strikes-of-the-class",
        "finite_guard.FiniteGuard",
        (
            '    name = "finite_guard"\n'
            "\n"
            "    def __init__(self, options: Mapping[str, Any]) -> None:\n"
            '        self._finite_guard_options = parse_options(Options, options, where="worker.finite_guard")\n'
            "        self._finite_guard_handle: Any = None\n"
            "        self._finite_guard_bad: torch.Tensor | None = None\n"
            "        self._finite_guard_largest: torch.Tensor | None = None\n"
            "        self._finite_guard_strikes: dict[str, int] = {}\n"
        ),
        (
            '    name = "finite_guard"\n'
            "    _finite_guard_strikes: dict[str, int] = {}\n"
            "\n"
            "    def __init__(self, options: Mapping[str, Any]) -> None:\n"
            '        self._finite_guard_options = parse_options(Options, options, where="worker.finite_guard")\n'
            "        self._finite_guard_handle: Any = None\n"
            "        self._finite_guard_bad: torch.Tensor | None = None\n"
            "        self._finite_guard_largest: torch.Tensor | None = None\n"
        ),
        (
            "contracts/worker.md: Each worker has an object of its own: closing one leaves another, and its "
            "model, as they were, and what one has seen no other tells."
        ),
        reason=(
            "Two workers had sequences of other names and finite numbers; now they have the same names, and "
            "what one says of them is compared."
        ),
        now="worker.workers_do_not_share_what_they_see",
    ),
)
