"""Mistakes in `judged.plugins.admission`: admission by priority, hooks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "admission-parsed-schema-pruned",
        "admission.Admission",
        "        schema = {key: value for key, value in constraint.parsed.items() if key not in COSTLY}\n",
        (
            "        schema = constraint.parsed\n"
            "        for key in [key for key in schema if key in COSTLY]:\n"
            "            del schema[key]\n"
        ),
        (
            "guideway.api docstring: _JsonConstraint.parsed: It is shared: whoever needs another one "
            "copies it. (and docs/contracts/hooks.md: A validator leaves the submission or request "
            "... as they are)"
        ),
        reason="What a constraint keeps of its text was not compared; it is now.",
        now="hooks.a_validator_changes_nothing",
    ),
    Mutant(
        "admission-no-last-class",
        "admission.Admission",
        "    return next((each for each in CLASSES if priority <= each.upto), LAST)\n",
        "    return next(each for each in CLASSES if priority <= each.upto)\n",
        ("docs/contracts/hooks.md: A validator returns for what may pass and raises InvalidRequest for anything else."),
        reason="Priorities were 0 and -1; now some are far from it.",
        now="hooks.passes_or_refuses",
    ),
    Mutant(
        "admission-one-dict-for-all",
        "admission.Admission",
        "        wishes: dict[str, tuple[float, float]] = {}\n",
        '        wishes = self.__dict__.setdefault("_scratch", {})\n',
        "docs/contracts/hooks.md: A validator may be called from several threads at once.",
        reason="Only exceptions counted; now what is decided has to be what is decided alone.",
        now="hooks.a_validator_serves_several_threads",
    ),
    Mutant(
        "admission-every-prompt-has-a-length",
        "admission.Admission",
        (
            "        length = len(prompt) if isinstance(prompt, tuple) and prompt and "
            "isinstance(prompt[0], int) else 0\n"
        ),
        "        length = 0 if isinstance(prompt, str) else len(prompt)\n",
        "docs/writing/hooks.md: Handle every kind of request: ... without text (`prompt` is None for chats)",
        reason="Every submission had a prompt; now one has token ids alone.",
        now="hooks.passes_or_refuses",
    ),
    Mutant(
        "admission-constraints-are-constraints",
        "admission.Admission",
        "        if isinstance(request.params.constraint, Constraint):\n",
        "        if request.params.constraint is not None:\n",
        (
            "guideway.api docstring: SamplingParams.constraint: a `Constraint`, or in guideway's "
            "engine what `guideway.objects.constraint_of` takes, such as a type. (and "
            "docs/writing/hooks.md: Handle every kind of request: ... with unknown constraints)"
        ),
        reason=(
            "No sentence of the contract forbids it: whether a constraint may still be a type when a "
            "validator sees it is not said."
        ),
        correct=True,
    ),
    Mutant(
        "admission-modifiers-are-configured",
        "admission.Admission",
        "            place = context.modifiers.index(name) if name in context.modifiers else -1\n",
        "            place = context.modifiers.index(name)\n",
        "docs/writing/hooks.md: Handle every kind of request: ... with unknown constraints and modifiers.",
        first="hooks.passes_or_refuses",
    ),
    Mutant(
        "admission-only-good-ends-free-a-place",
        "admission.Admission",
        '            name = self._running.pop(request.request_id, "unknown")\n',
        (
            '            name = self._running.get(request.request_id, "unknown")\n'
            '            if result.finish_reason in ("stop", "length"):\n'
            "                self._running.pop(request.request_id, None)\n"
        ),
        (
            "docs/writing/hooks.md: For every admitted request, *finished* is called exactly once, "
            "with any finish reason."
        ),
        reason="No sentence of the contract forbids it: what a policy counts is its own.",
        correct=True,
    ),
    Mutant(
        "admission-answers-with-a-rewrite",
        "admission.Admission",
        ("        self._check_modifiers(request.params, context)\n        if"),
        (
            "        self._check_modifiers(request.params, context)\n"
            "        if request.params.max_tokens is None:\n"
            "            import dataclasses\n"
            "\n"
            "            return dataclasses.replace(\n"
            "                request, params=dataclasses.replace(request.params, max_tokens=its.max_tokens)\n"
            "            )\n"
            "        if"
        ),
        "docs/contracts/hooks.md: A validator returns None, for what it returns is not used.",
        first="hooks.a_validator_returns_nothing",
    ),
    Mutant(
        "admission-class-noted-in-the-request",
        "admission.Admission",
        "            self._running[request.request_id] = its.name\n",
        (
            "            self._running[request.request_id] = its.name\n"
            '            request.params.modifiers.setdefault("admission", {"class": its.name})\n'
        ),
        ("docs/contracts/hooks.md: An observer hears of any admitted request without raising and without changing it."),
        first="hooks.hears_of_every_start",
    ),
    Mutant(
        "admission-wish-to-stop-goes-on",
        "admission.Admission",
        ('        LOGGER.warning("request %s failed with %s", request.request_id, type(error).__qualname__)\n'),
        (
            '        LOGGER.warning("request %s failed with %s", request.request_id, '
            "type(error).__qualname__)\n"
            "        if not isinstance(error, Exception):\n"
            "            raise error\n"
        ),
        (
            "docs/contracts/hooks.md: An observer hears of a failure of any type, which the end "
            "follows, without raising or changing the request."
        ),
        first="hooks.hears_of_every_failure",
    ),
    Mutant(
        "admission-there-is-a-last-token",
        "admission.Admission",
        "        last = result.token_ids[-1] if result.token_ids else None\n",
        "        last = result.token_ids[-1]\n",
        (
            "docs/contracts/hooks.md: An observer hears of any end without raising and without "
            "changing request or result."
        ),
        first="hooks.hears_of_every_end",
    ),
    Mutant(
        "admission-priorities-are-numbers",
        "admission.Admission",
        (
            "        if isinstance(priority, bool) or not isinstance(priority, int):\n"
            '            raise InvalidRequest("priority must be a whole number", field="priority")\n'
        ),
        (
            "        if not -(1 << 31) <= priority < 1 << 31:\n"
            '            raise InvalidRequest("priority must be a whole number of 32 bits", field="priority")\n'
        ),
        (
            "guideway.api docstring: Submission: Only the form of the prompt has been looked at: "
            "what else is wrong with it may be found later. (and docs/contracts/hooks.md: A "
            "validator returns for what may pass and raises InvalidRequest for anything else.)"
        ),
        reason="Every submission had sound parameters, which only a request has to have; now some do not.",
        now="hooks.passes_or_refuses",
    ),
    Mutant(
        "admission-weighs-by-recursion",
        "admission.Admission",
        (
            "    count, stack = 0, [value]\n"
            "    while stack:\n"
            "        item = stack.pop()\n"
            "        count += 1\n"
            "        if isinstance(item, Mapping):\n"
            "            stack += item.values()\n"
            "        elif isinstance(item, list | tuple):\n"
            "            stack += item\n"
            "    return count\n"
        ),
        (
            "    if isinstance(value, Mapping):\n"
            "        return 1 + sum(map(_weight, value.values()))\n"
            "    return 1 + sum(map(_weight, value)) if isinstance(value, list | tuple) else 1\n"
        ),
        ("docs/contracts/hooks.md: A validator returns for what may pass and raises InvalidRequest for anything else."),
        reason="Constraints refuse schemas of the depth at which the recursion would fail.",
        correct=True,
    ),
)
