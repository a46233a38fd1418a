"""Mistakes in `judged.plugins.shelves`: vectors in padded steps, workflow."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "shelves-sorts-by-priority-alone",
        "shelves.Shelves",
        "self._ready.sort(key=lambda entry: entry[0])",
        "self._ready.sort(key=lambda entry: entry[0][0])",
        (
            "contracts/workflow: 'A scheduler that goes by priority lets the lower go first: among a "
            "tenant's requests of one size, none is computed before one that is prepared, came earlier "
            "and has a priority as low or lower.'"
        ),
        reason="Requests were prepared in the order in which they were handed out.",
        now="workflow.the_urgent_are_not_overtaken",
    ),
    Mutant(
        "shelves-abort-leaves-what-was-handed-out",
        "shelves.Shelves",
        ("        self._handed.pop(task, None)\n        self._waiting = ["),
        "        self._waiting = [",
        (
            "contracts/workflow: 'A task that is aborted after it was handed out, as no request came "
            "of it, is in no step; the others are, however many failed.'"
        ),
        first="workflow.aborted_tasks_are_gone",
    ),
    Mutant(
        "shelves-window-of-the-default",
        "shelves.Shelves",
        "        return 4 * int(self.context.options.max_step_requests)\n",
        "        return 4 * Options.max_step_requests\n",
        (
            "contracts/workflow: 'The window of a scheduler is enough for several full steps: at least "
            "two of the largest.'"
        ),
        reason="Options of an operator had their defaults; each check of schedulers is now made with others, too.",
        now="workflow.its_window_holds_several_steps",
    ),
    Mutant(
        "shelves-waits-half-a-second",
        "shelves.Shelves",
        ("        if not self._ready or (more and not full):\n            return None\n"),
        (
            "        import time\n"
            "\n"
            "        now = time.monotonic()\n"
            "        if not self._ready:\n"
            "            self._since = None\n"
            "            return None\n"
            '        self._since = getattr(self, "_since", None) or now\n'
            "        if more and not full and now - self._since < 0.5:\n"
            "            return None\n"
            "        self._since = None\n"
        ),
        (
            "contracts/workflow: 'A step that is not full waits while there is more to come, however "
            "long that takes, and no longer than that.'"
        ),
        first="workflow.a_step_that_is_not_full_waits",
    ),
    Mutant(
        "shelves-one-buffer",
        "shelves.Shelves",
        "        ids = np.zeros((len(work), int(lengths.max())), dtype=np.int64)\n",
        (
            '        if getattr(self, "_buffer", np.zeros((0, 0))).shape != (len(work), int(lengths.max())):\n'
            "            self._buffer = np.zeros((len(work), int(lengths.max())), dtype=np.int64)\n"
            "        ids = self._buffer\n"
            "        ids[:] = 0\n"
        ),
        (
            "contracts/workflow: 'A step may be built before the one before it is computed, and "
            "computed before the results of that are made'; writing/workflow: 'keep no array of a step "
            "that was built'"
        ),
        first="workflow.steps_may_overlap",
    ),
    Mutant(
        "shelves-left-is-right",
        "shelves.Shelves",
        '            ids = ids[:most] if side == "right" else ids[-most:]\n',
        "            ids = ids[:most]\n",
        (
            "contracts/workflow: 'Nothing that a caller asks for is ignored: ... one that it takes, "
            "with several values, is read by a part that makes something of it.'"
        ),
        reason=(
            "That two values cut alike was no mistake by any sentence; the rule says now that `left` "
            "and `right` cut at different ends."
        ),
        now="workflow.too_long_is_cut_or_refused",
    ),
    Mutant(
        "shelves-one-text-spoils-the-batch",
        "shelves.Shelves",
        ("        except Exception:\n            return [self._alone(task) for task in tasks]\n"),
        (
            "        except Exception as error:\n"
            '            return [InvalidRequest(f"the text cannot be tokenized: {error}", '
            'field="input") for _ in tasks]\n'
        ),
        (
            "contracts/workflow: 'an input of which no tokens can be made comes to an error of its "
            "own, which says why, ...; those beside it and after it are, in order, what they are without it.'"
        ),
        first="workflow.what_cannot_be_prepared_ends_alone",
    ),
    Mutant(
        "shelves-closes-only-once-loaded",
        "shelves.Shelves",
        ("    def close(self) -> None:\n        self._model = None\n"),
        ("    def close(self) -> None:\n        del self._model\n"),
        "contracts/workflow: 'A runner can be closed, loaded or not, and another one then still works.'",
        first="workflow.closes",
    ),
    Mutant(
        "shelves-one-nan-for-all",
        "shelves.Shelves",
        "        return [self._result(request, row) for request, row in zip(work, output, strict=True)]\n",
        (
            "        if not np.isfinite(output).all():\n"
            '            return [GuidewayError("the model\'s numbers are not finite") for _ in work]\n'
            "        return [self._result(request, row) for request, row in zip(work, output, strict=True)]\n"
        ),
        (
            "contracts/workflow: '`results` raises nothing where the model gives numbers that are not "
            "finite, ...; where they are of one, the others have theirs.'"
        ),
        first="workflow.what_is_not_finite_ends_alone",
    ),
)
