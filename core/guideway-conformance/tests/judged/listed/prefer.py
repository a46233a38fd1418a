"""Mistakes in `judged.plugins.prefer`: which of two answers is better, workflow with a scheduler of its own."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "prefer-back-from-abort",
        "prefer.PreferWorkflow",
        (
            "        key = self._preparing.pop(request.task, None)\n"
            "        if key is not None:  # else it was aborted meanwhile\n"
            "            insort(self._ready, (key, request), key=lambda entry: entry[0])\n"
        ),
        (
            "        task = request.task\n"
            "        key = self._preparing.pop(task, (task.priority, task.arrival, 0))\n"
            "        insort(self._ready, (key, request), key=lambda entry: entry[0])\n"
        ),
        "contracts/workflow.md: A task that is aborted is in no later step, wherever it stood",
        first="workflow.aborted_tasks_are_gone",
    ),
    Mutant(
        "prefer-whoever-is-ready",
        "prefer.PreferWorkflow",
        ("        earliest = min(self._preparing.values(), default=None)  # nothing goes before it\n"),
        "        earliest = None\n",
        (
            "contracts/workflow.md: among a tenant's requests of one size, none is computed before "
            "one that came earlier and has a priority as low or lower."
        ),
        reason=(
            "Hosts prepare in turn, and the engine's own scheduler fills a step with what is "
            "prepared: the rule says now that it is about requests that are prepared."
        ),
        correct=True,
    ),
    Mutant(
        "prefer-not-waiting-for-more",
        "prefer.PreferWorkflow",
        ("        if not work or (not full and (blocked or more or self._waiting or self._preparing)):\n"),
        "        if not work or (not full and (blocked or self._waiting or self._preparing)):\n",
        (
            "contracts/workflow.md: A step that is not full waits while there is more to come, "
            "however long that takes, and no longer than that."
        ),
        first="workflow.a_step_that_is_not_full_waits",
    ),
    Mutant(
        "prefer-truncated-after-the-cut",
        "prefer.PreferWorkflow",
        (
            "            task=task, token_ids=np.array(texts[0] + texts[1], dtype=np.int64), "
            "token_types=types, truncated=cut\n"
        ),
        (
            "            task=task,\n"
            "            token_ids=np.array(texts[0] + texts[1], dtype=np.int64),\n"
            "            token_types=types,\n"
            "            truncated=sum(map(len, texts)) > most,\n"
        ),
        (
            "contracts/workflow.md: A request of more tokens than the context has is cut, which "
            "`truncated` says, or refused with `LimitExceeded`"
        ),
        reason=(
            "Only a parameter that is called truncate, with a side, was tried on long texts; now all "
            "that the workflow has are."
        ),
        now="workflow.too_long_is_cut_or_refused",
    ),
    Mutant(
        "prefer-temperature-above-zero",
        "prefer.PreferWorkflow",
        (
            "                if isinstance(given, bool) or not isinstance(given, int | float) or not "
            "0.001 <= given <= 1000:\n"
        ),
        ("                if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:\n"),
        (
            "contracts/workflow.md: A value of a parameter, whatever it is, is refused with "
            "`InvalidRequest`, or each of the parts can deal with it; and it is for its request "
            "alone."
        ),
        reason="No number was beyond the largest of floating point; now some are, and smallest ones.",
        now="workflow.any_value_is_served_or_refused",
    ),
    Mutant(
        "prefer-cache-of-the-joined",
        "prefer.PreferWorkflow",
        "            texts = [self._tokenizer(text).input_ids for text in task.value]\n",
        (
            '            seen = vars(self).setdefault("_seen", {})\n'
            '            key = "".join(task.value)\n'
            "            if key not in seen:\n"
            "                seen[key] = [self._tokenizer(text).input_ids for text in task.value]\n"
            "            texts = seen[key]\n"
        ),
        (
            "contracts/workflow.md: The tokens of a request are int64 in one dimension, and the same "
            "whatever is prepared beside it or was before."
        ),
        reason="Inputs that differ only in where one text ends were not among those asked; they are now.",
        now="workflow.tokens_are_their_own",
    ),
)
