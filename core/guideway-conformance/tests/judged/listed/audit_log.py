"""Mistakes in `judged.plugins.audit_log`: an audit log, and secrets, hooks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "audit-only-missing-file",
        "audit_log.PLUGIN",
        ("    except (OSError, ValueError) as error:\n        LOGGER"),
        ("    except FileNotFoundError as error:\n        LOGGER"),
        (
            "contracts/hooks: 'An observer that cannot read or write a file, from one moment to the "
            "next, raises nothing.'"
        ),
        first="hooks.an_observer_goes_on_without_its_files",
    ),
    Mutant(
        "audit-failed-in-a-thread",
        "audit_log.PLUGIN",
        '    _write({"event": "failed", "id": request.request_id, "error": type(error).__name__})\n',
        (
            '    line = {"event": "failed", "id": request.request_id, "error": type(error).__name__}\n'
            "    threading.Thread(target=_write, args=(line,), daemon=True).start()  # a full disk "
            "must not hold up the host\n"
        ),
        (
            "contracts/hooks: 'An observer has heard when it returns: it is an ordinary function, ... "
            "and leaves what it is told of to no thread that it starts for that.'"
        ),
        first="hooks.an_observer_has_heard",
    ),
    Mutant(
        "audit-depth",
        "audit_log.PLUGIN",
        "    if depth > 32:\n",
        "    if depth > 3200:\n",
        "contracts/hooks: 'A validator returns for what may pass and raises InvalidRequest for anything else.'",
        reason=(
            "Hosts refuse messages and tools that are nested deeper than 100 levels, before a "
            "validator sees them, so that one which goes down as deep as they are nested breaks no promise."
        ),
        correct=True,
    ),
    Mutant(
        "audit-gives-messages-content",
        "audit_log.PLUGIN",
        ("    elif isinstance(value, Mapping):\n        for part"),
        (
            "    elif isinstance(value, Mapping):\n"
            '        if "role" in value and isinstance(value, dict):\n'
            '            value.setdefault("content", "")\n'
            "        for part"
        ),
        (
            "contracts/hooks: 'A validator leaves the submission or request and its context as they "
            "are, whether it passes or refuses.'"
        ),
        first="hooks.a_validator_changes_nothing",
    ),
    Mutant(
        "audit-annotates-the-result",
        "audit_log.PLUGIN",
        ("    with _LOCK:\n        entry = _RUNNING.pop(request.request_id, None)\n        _REASONS"),
        (
            "    with _LOCK:\n"
            "        entry = _RUNNING.pop(request.request_id, None)\n"
            "        for output in result.outputs:\n"
            "            if entry is not None and isinstance(output.reports, dict):\n"
            '                output.reports["audit"] = {"errors": entry.errors}\n'
            "        _REASONS"
        ),
        ("contracts/hooks: 'An observer hears of any end without raising and without changing request or result.'"),
        first="hooks.hears_of_every_end",
    ),
    Mutant(
        "audit-error-of-no-words",
        "audit_log.PLUGIN",
        '    _write({"event": "failed", "id": request.request_id, "error": type(error).__name__})\n',
        (
            '    _write({"event": "failed", "id": request.request_id, "error": '
            'f"{type(error).__name__}: {error.args[0]}"})\n'
        ),
        (
            "contracts/hooks: 'An observer hears of a failure of any type, which the end follows, "
            "without raising or changing the request.'"
        ),
        first="hooks.hears_of_every_failure",
    ),
)
