"""Mistakes in `judged.plugins.ledger`: an audit ledger, hooks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "ledger-open-end-is-zero",
        "ledger.Ledger",
        "    if most is None:\n",
        "    if most < 1:\n",
        "docs/writing/hooks.md: Handle every kind of request: ... without `max_tokens`",
        first="hooks.passes_or_refuses",
    ),
    Mutant(
        "ledger-rates-of-known-tasks",
        "ledger.Ledger",
        ("    for_prompt, for_output = RATES.get(request.task, (1, 4))\n    length"),
        ("    for_prompt, for_output = RATES[request.task]\n    length"),
        "docs/writing/hooks.md: Handle every kind of request: of every `task`",
        reason="No request was of a task that guideway does not have; now one is.",
        now="hooks.passes_or_refuses",
    ),
    Mutant(
        "ledger-size-of-anything",
        "ledger.Ledger",
        "    return len(repr(prompt))\n",
        "    return len(prompt)\n",
        ("docs/contracts/hooks.md: A validator returns for what may pass and raises InvalidRequest for anything else."),
        reason="No chat had a number of floating point in it; now one has, and its tools.",
        now="hooks.passes_or_refuses",
    ),
    Mutant(
        "ledger-tools-completed-in-place",
        "ledger.Ledger",
        '            size += _size(({"type": "function", **tool},))\n',
        ('            tool.setdefault("type", "function")\n            size += _size((tool,))\n'),
        (
            "docs/contracts/hooks.md: A validator leaves the submission or request and its context "
            "as they are, whether it passes or refuses."
        ),
        reason="No submission had tools; now one has, some without a type.",
        now="hooks.a_validator_changes_nothing",
    ),
    Mutant(
        "ledger-books-read-without-lock",
        "ledger.Ledger",
        (
            "        with self._lock:\n"
            "            used = sum(units for (when, user), units in self._spent.items() if when == "
            "day and user == request.tenant)\n"
            "            used += sum(entry.reserved for entry in self._open.values() if entry.user "
            "== request.tenant)\n"
        ),
        (
            "        used = sum(units for (when, user), units in self._spent.items() if when == day "
            "and user == request.tenant)\n"
            "        used += sum(entry.reserved for entry in self._open.values() if entry.user == "
            "request.tenant)\n"
        ),
        "docs/contracts/hooks.md: A validator may be called from several threads at once.",
        reason="No observer heard of anything meanwhile; now one thread tells the same object of starts and ends.",
        now="hooks.a_validator_serves_several_threads",
    ),
    Mutant(
        "ledger-end-without-start",
        "ledger.Ledger",
        "entry = self._open.pop(request.request_id, None) or self._entry(request)",
        "entry = self._open.pop(request.request_id)",
        (
            "docs/contracts/hooks.md: An observer hears of any end without raising and without "
            "changing request or result."
        ),
        reason="No sentence of the contract forbids it: no host tells of an end without a start.",
        correct=True,
    ),
    Mutant(
        "ledger-open-by-user",
        "ledger.Ledger",
        "            self._open[request.request_id] = entry\n",
        "            self._open[request.tenant] = entry\n",
        ("docs/writing/hooks.md: Requests overlap and end in any order, so store data by `request.request_id`."),
        reason="What a ledger may remember of whom, no rule can know.",
        survives=True,
    ),
    Mutant(
        "ledger-failures-are-plugins",
        "ledger.Ledger",
        'plugin = getattr(error, "plugin", "the host")',
        "plugin = error.plugin",
        (
            "docs/contracts/hooks.md: An observer hears of a failure of any type, which the end "
            "follows, without raising or changing the request."
        ),
        first="hooks.hears_of_every_failure",
    ),
    Mutant(
        "ledger-failed-is-a-coroutine",
        "ledger.Ledger",
        "    def guideway_request_failed(",
        "    async def guideway_request_failed(",
        (
            "docs/contracts/hooks.md: An observer has heard when it returns: it is an ordinary "
            "function, for nobody awaits what it returns."
        ),
        first="hooks.an_observer_has_heard",
    ),
    Mutant(
        "ledger-fails-open",
        "ledger.Ledger",
        (
            "            raise InvalidRequest(\"nobody is served: the ledger's policy cannot be "
            'read", field="tenant") from error\n'
        ),
        ('            LOGGER.warning("the ledger\'s policy cannot be read: %s", error)\n            return Policy()\n'),
        "docs/writing/hooks.md: *Fail closed*: if you cannot read the file, refuse the request.",
        reason="Files that variables name were not looked for; now each is one that is not there, or is damaged.",
        now="hooks.what_cannot_be_read_refuses",
    ),
    Mutant(
        "ledger-only-broken-json",
        "ledger.Ledger",
        "except (OSError, ValueError, TypeError, AttributeError) as error:",
        "except (OSError, json.JSONDecodeError) as error:",
        ("docs/contracts/hooks.md: A validator returns for what may pass and raises InvalidRequest for anything else."),
        reason="Files that variables name were not looked for; now each is one that is not there, or is damaged.",
        now="hooks.what_cannot_be_read_refuses",
    ),
)
