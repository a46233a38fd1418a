"""Mistakes in `judged.plugins.finite_watch`: numbers that are not finite, worker mixin."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "watch-who-has-rows",
        "finite_watch.FiniteWatch",
        ("            names = tuple(dict.fromkeys(step.sequence_ids))  # companions have the name of their sequence\n"),
        ("            names = tuple(dict.fromkeys(step.sequence_ids[: step.num_rows]))  # those that draw a token\n"),
        (
            "contracts/worker.md: A mixin that raises SequencesFailed names sequences of the step it "
            "was given, at least one, and goes on."
        ),
        reason=("The model's numbers were always finite; now some are not, in steps with and without rows."),
        now="worker.blames_sequences_of_its_step",
    ),
    Mutant(
        "watch-peaks-of-the-class",
        "finite_watch.FiniteWatch",
        (
            "\n"
            "    def __init__(self, options: Mapping[str, Any]) -> None:\n"
            "        self._finite_watch_options = parse_options(Options, options, "
            'where="worker.finite_watch")\n'
            "        self._finite_watch_hooks: list[Any] = []\n"
            "        self._finite_watch_model: Any = None\n"
            '        self._finite_watch_device = ""\n'
            "        self._finite_watch_rank = 0\n"
            "        self._finite_watch_step: dict[str, Any] = {}  # by layer the largest of this "
            "step, on the device\n"
            "        self._finite_watch_peaks: dict[str, Any] = {}  # by layer the largest of all "
            "steps that ended\n"
        ),
        (
            "    _finite_watch_peaks: dict[str, Any] = {}  # by layer the largest of all steps that "
            "ended\n"
            "\n"
            "    def __init__(self, options: Mapping[str, Any]) -> None:\n"
            "        self._finite_watch_options = parse_options(Options, options, "
            'where="worker.finite_watch")\n'
            "        self._finite_watch_hooks: list[Any] = []\n"
            "        self._finite_watch_model: Any = None\n"
            '        self._finite_watch_device = ""\n'
            "        self._finite_watch_rank = 0\n"
            "        self._finite_watch_step: dict[str, Any] = {}  # by layer the largest of this "
            "step, on the device\n"
        ),
        (
            "contracts/worker.md: Each worker has an object of its own: closing one leaves another, "
            "and its model, as they were, and what one has seen no other tells."
        ),
        reason="Only whole numbers were compared beside another worker; now all that a mixin tells is.",
        now="worker.workers_do_not_share_what_they_see",
    ),
    Mutant(
        "watch-resume-after-the-end",
        "finite_watch.FiniteWatch",
        "        self._finite_watch_model = None\n",
        "",
        (
            "contracts/worker.md: When a mixin has closed, the modules of the model have the hooks "
            "that they had before it, and no others, whatever its public methods were asked for."
        ),
        reason="Public methods were called between loading and closing; now before and after that, too.",
        now="worker.takes_its_hooks_with_it",
    ),
    Mutant(
        "watch-what-the-failed-step-left",
        "finite_watch.FiniteWatch",
        ("        self._finite_watch_open = True\n        self._finite_watch_step = {}\n"),
        "        self._finite_watch_open = True\n",
        (
            "contracts/worker.md: After a step that failed in its forward pass, which has no "
            "after_step, before_step is called again; and: A mixin that raises SequencesFailed names "
            "sequences of the step it was given."
        ),
        reason=(
            "No sentence said for which step's numbers a mixin may end sequences; the rule does now, "
            "and steps fail amid numbers that are not finite."
        ),
        now="worker.survives_a_failed_step",
    ),
    Mutant(
        "watch-tensors-told",
        "finite_watch.FiniteWatch",
        (
            "        largest = torch.stack(list(found.values())).cpu().tolist()  # one wait for the "
            "device, not one a layer\n"
        ),
        ("        largest = list(torch.stack(list(found.values())))  # on the device: no step waits for it\n"),
        (
            "contracts/worker.md: Results of its public methods pickle, because they go to another "
            "process, and hold no tensors, whose device that one may not have."
        ),
        first="worker.results_pickle",
    ),
    Mutant(
        "watch-nothing-in-it",
        "finite_watch.FiniteWatch",
        ("            if not first.numel():\n                return\n"),
        "",
        ("contracts/worker.md: A step may have any number of sequences and tokens, may have no rows"),
        first="worker.survives_steps_of_any_size",
    ),
)
