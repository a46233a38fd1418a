"""Mistakes in `judged.plugins.signatures`: a workflow with a scheduler of its own."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "signatures-does-not-wait",
        "signatures.Signatures",
        "        if not work or (not is_full and (more or self._waiting)):\n",
        "        if not work:\n",
        "docs/writing/workflow.md: If a step is not full and there is `more` to come, it returns None.",
        reason=(
            "Schedulers were always told that nothing was to come; now they are told that more is, "
            "too, and the clock is moved."
        ),
        now="workflow.a_step_that_is_not_full_waits",
    ),
    Mutant(
        "signatures-waits-twenty-milliseconds",
        "signatures.Signatures",
        ("        if not work or (not is_full and (more or self._waiting)):\n            return None\n"),
        (
            "        import time\n"
            "\n"
            "        if not work:\n"
            "            return None\n"
            '        began = self.__dict__.setdefault("_began", time.monotonic())\n'
            "        if not is_full and (more or self._waiting) and time.monotonic() - began < 0.02:\n"
            "            return None\n"
            "        del self._began\n"
        ),
        (
            "docs/writing/workflow.md: **Time settles nothing.** A scheduler's `next` returns what "
            "order and budgets say."
        ),
        reason=(
            "Schedulers were always told that nothing was to come; now they are told that more is, "
            "too, and the clock is moved."
        ),
        now="workflow.a_step_that_is_not_full_waits",
    ),
    Mutant(
        "signatures-aborts-what-is-ready",
        "signatures.Signatures",
        "        self._turns = [turn for turn in self._turns if turn[0] is not task]\n",
        "        self._turns = [turn for turn in self._turns if turn[0] is not task or turn[1] is None]\n",
        (
            "docs/contracts/workflow.md: A task that is aborted after it was handed out, as no "
            "request came of it, is in no step; the others are, however many failed."
        ),
        first="workflow.aborted_tasks_are_gone",
    ),
    Mutant(
        "signatures-overtakes-the-unprepared",
        "signatures.Signatures",
        "                return None  # whoever is next comes first\n",
        "                continue\n",
        (
            "docs/contracts/workflow.md: Every task that is added is handed out to be prepared once, "
            "and is in one step once; afterwards there is none."
        ),
        reason=(
            "All tasks that were handed out were prepared before a step was asked for; now they come "
            "one by one, the last first."
        ),
        now="workflow.each_has_its_turn_once",
    ),
    Mutant(
        "signatures-too-long-for-any-step",
        "signatures.Signatures",
        "            if work and tokens > options.max_step_tokens:\n",
        "            if tokens > options.max_step_tokens:\n",
        (
            "docs/workflows.md: `max_step_tokens`, `max_step_requests`: the budgets of a step; a "
            "longer input has one of its own (and docs/contracts/workflow.md: Every task that is "
            "added ... is in one step once)"
        ),
        reason="No request was longer than the budget of a step; now all are.",
        now="workflow.each_has_its_turn_once",
    ),
    Mutant(
        "signatures-one-too-many",
        "signatures.Signatures",
        "            if len(work) == options.max_step_requests:\n",
        "            if len(work) > options.max_step_requests:\n",
        (
            "docs/writing/workflow.md: A scheduler's `next` returns what order and budgets say. (and "
            "docs/workflows.md: `max_step_requests`: the budgets of a step)"
        ),
        reason="No sentence of the contract forbids it: the budgets of a scheduler are options of its own.",
        correct=True,
    ),
    Mutant(
        "signatures-higher-first",
        "signatures.Signatures",
        "            order.append((task.priority, turn, task.arrival, task))\n",
        "            order.append((-task.priority, turn, task.arrival, task))\n",
        "guideway.api docstring: Task.priority: Lower goes first.",
        reason="The order of priorities was not looked at; it is now.",
        now="workflow.the_urgent_are_not_overtaken",
    ),
    Mutant(
        "signatures-takes-the-first-out",
        "signatures.Signatures",
        "        self._waiting = [task for task in self._waiting if task not in chosen]\n",
        "        self._waiting = self._waiting[len(chosen) :]\n",
        ("guideway.api docstring: WorkScheduler.upcoming: The tasks to prepare next, in turn; each is returned once."),
        first="workflow.each_has_its_turn_once",
    ),
    Mutant(
        "signatures-window-of-one-step",
        "signatures.Signatures",
        "        return 4 * self.context.options.max_step_requests\n",
        "        return self.context.options.max_step_requests\n",
        (
            "guideway.api docstring: WorkScheduler.window: The tasks of one caller that are taken "
            "from him at a time: enough for several full steps."
        ),
        reason="A window of 1 was enough; now it has to hold two full steps.",
        now="workflow.its_window_holds_several_steps",
    ),
    Mutant(
        "signatures-first-come-first-served",
        "signatures.Signatures",
        "            order.append((task.priority, turn, task.arrival, task))\n",
        "            order.append((task.priority, task.arrival, task.arrival, task))\n",
        "guideway.api docstring: Task.tenant: On whose behalf: tenants share a busy host fairly.",
        reason="To leave tenants alone is a policy, too: the contract leaves fairness to each scheduler.",
        survives=True,
    ),
    Mutant(
        "signatures-seed-is-ignored",
        "signatures.Signatures",
        "            draw = np.random.default_rng(self.context.options.seed)\n",
        "            draw = np.random.default_rng()\n",
        (
            "docs/writing/workflow.md: **Time settles nothing.** ... **Nothing is ignored.** (and "
            "docs/contracts/workflow.md: A request's result is the same alone, among others, and in "
            "another order.)"
        ),
        first="workflow.closes",
    ),
    Mutant(
        "signatures-always-256",
        "signatures.Signatures",
        "        return min(256, cls.max_length(model))\n",
        "        return 256\n",
        (
            "guideway.api docstring: Workflow.default_length: The most tokens of a request where the "
            "operator does not say; at most `max_length`."
        ),
        first="workflow.supports_says_why",
    ),
    Mutant(
        "signatures-centered-by-the-step",
        "signatures.Signatures",
        "        sides = np.packbits(output @ self._planes[width] > 0, axis=1)\n",
        "        sides = np.packbits((output - output.mean(0)) @ self._planes[width] > 0, axis=1)\n",
        ("docs/contracts/workflow.md: A request's result is the same alone, among others, and in another order."),
        first="workflow.company_changes_nothing",
    ),
    Mutant(
        "signatures-not-finite-is-raised",
        "signatures.Signatures",
        '                results.append(GuidewayError("the model gave a vector that is not finite"))\n',
        '                raise GuidewayError("the model gave a vector that is not finite")\n',
        (
            "docs/writing/workflow.md: **One task's failure is its own.** `prepare` and `results` "
            "return an error in the place of a result."
        ),
        reason="Every number was finite; now some are not.",
        now="workflow.what_is_not_finite_ends_alone",
    ),
)
