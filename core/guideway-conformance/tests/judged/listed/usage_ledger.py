"""Mistakes in `judged.plugins.usage_ledger`: who used how many tokens, hooks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "ul-narrow-except",
        "usage_ledger.PLUGIN",
        ("        except OSError as error:\n            LOGGER"),
        ("        except (FileNotFoundError, PermissionError) as error:\n            LOGGER"),
        (
            "contracts/hooks.md: An observer that cannot read or write a file, from one moment to the next, "
            "raises nothing."
        ),
        first="hooks.an_observer_goes_on_without_its_files",
    ),
    Mutant(
        "ul-counts-without-lock",
        "usage_ledger.PLUGIN",
        (
            "        with self._lock:\n"
            "            running = sum(entry.tenant == request.tenant for entry in self._open.values())\n"
        ),
        "        running = sum(entry.tenant == request.tenant for entry in self._open.values())\n",
        (
            "contracts/hooks.md: A validator may be called from several threads at once, while observers "
            "hear of other requests, and decides as it does alone."
        ),
        first="hooks.a_validator_serves_several_threads",
    ),
    Mutant(
        "ul-first-argument-of-error",
        "usage_ledger.PLUGIN",
        "        what = type(error).__name__\n",
        '        what = f"{type(error).__name__}: {error.args[0]}"\n',
        (
            "contracts/hooks.md: An observer hears of a failure of any type, which the end follows, without "
            "raising or changing the request."
        ),
        first="hooks.hears_of_every_failure",
    ),
    Mutant(
        "ul-stamp-cache-of-caps",
        "usage_ledger.PLUGIN",
        '        caps = json.loads(Path(path).read_text(encoding="utf-8"))\n',
        (
            "        stamp = (path, os.stat(path).st_mtime_ns, os.stat(path).st_size)\n"
            "        known = read_caps.__dict__\n"
            '        if known.get("stamp") != stamp:\n'
            '            known.update(caps=json.loads(Path(path).read_text(encoding="utf-8")), stamp=stamp)\n'
            '        caps = known["caps"]\n'
        ),
        (
            "contracts/hooks.md: A validator that cannot read the file that its environment variable names "
            "fails closed ... also where it could read that file hours before, when it was asked of another "
            "request."
        ),
        reason=(
            "A file that was read went away, and none stayed that could not be opened any more; one does "
            "now, and others become folders or nonsense."
        ),
        now="hooks.what_cannot_be_read_refuses",
    ),
    Mutant(
        "ul-count-is-invalid-request",
        "usage_ledger.PLUGIN",
        (
            '            raise LimitExceeded(f"tenant {request.tenant!r} has {running} requests under way", '
            'field="tenant")\n'
        ),
        (
            '            raise InvalidRequest(f"tenant {request.tenant!r} has {running} requests under way", '
            'field="tenant")\n'
        ),
        (
            "contracts/hooks.md: what it counts may refuse one with LimitExceeded, and lets none pass "
            "(writing/hooks.md: What you count may refuse one, with `LimitExceeded`)"
        ),
        reason="Fewer requests ran at once than a tenant may have; hundreds of one tenant do now.",
        now="hooks.a_validator_decides_each_by_itself",
    ),
)
