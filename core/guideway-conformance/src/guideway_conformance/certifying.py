"""Test the plugins that an operator names, or that a configuration selects; print and record the results."""
# ruff: noqa: T201 - a command prints

from __future__ import annotations

import contextlib
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from guideway.command_line.terminal import print_table
from guideway.errors import InvalidConfiguration, PluginUnavailable
from guideway.files import clash, write_file
from guideway.plugins import Plugins
from guideway.plugins.index import PluginIndex, PluginRecord
from guideway.plugins.lock import Lock, Verdict, default_lock

from guideway_conformance.formats.badge import badge, svg
from guideway_conformance.formats.junit import junit
from guideway_conformance.formats.markdown import markdown
from guideway_conformance.formats.terminal import Terminal
from guideway_conformance.isolation import CannotLoad
from guideway_conformance.known_failures import FILE_NAME, Preferences
from guideway_conformance.registry import KIND_MODULES
from guideway_conformance.report import INTERRUPTED, Report
from guideway_conformance.runner import run
from guideway_conformance.target import Target, find, is_file

__all__ = ["CANNOT_LOAD", "EXIT_STATUS", "conform"]

EXIT_STATUS = {"certified": 0, "failed": 1, "incomplete": 2, "known failures": 3}
CANNOT_LOAD = 4
ENDED = "ended by a signal"
GRAVEST_FIRST = (CANNOT_LOAD, 1, 2, 3, 0)

FORMS: dict[str, tuple[str, Callable[[Report], str]]] = {
    "report": (".json", Report.to_text),
    "markdown": (".md", markdown),
    "junit": (".xml", junit),
    "badge": (".badge.json", badge),
}
"""By option: the suffix of the file if the option names a folder, and the function that writes the text."""

Outcome: TypeAlias = tuple[int, str, str]
"""The outcome of one test: an exit status, a word, and the number of obligations that were met."""


def conform(args: Namespace) -> int:
    """Run ``guideway conform``. Return the exit status; for several plugins, the worst."""
    with _interrupt_on_signals():
        records, lock = _choose(args)
        several = args.config is not None or len(records) > 1
        for form in FORMS:
            if (path := getattr(args, form)) and not several and not Path(path).absolute().parent.is_dir():
                raise InvalidConfiguration(
                    f"cannot write {path}: there is no folder {Path(path).parent}", field="report"
                )
        written = {f"--{form}": None if several else getattr(args, form) for form in FORMS}
        if said := clash(written, {"--lock": lock, "--config": args.config}):
            raise InvalidConfiguration(said, field="report")
        if args.record and Path(lock).exists():
            Lock.read(lock)  # report an unreadable lock before the run, not after it
        if not several:
            return _test(args, records[0], lock, in_folders=False)[0]
        return _test_all(args, records, lock)


def _choose(args: Namespace) -> tuple[Sequence[PluginRecord | Target], str]:
    """Return the plugins to test, each once, and the lock file. Raises `InvalidConfiguration` and `PluginError`."""
    if args.lock and not args.record:
        raise InvalidConfiguration("--lock names the file that --record writes; add --record", field="lock")
    if args.config is None:
        if not args.plugin:
            raise InvalidConfiguration("name a PLUGIN, or give --config FILE", field="plugin")
        if args.record and any(map(is_file, args.plugin)):
            raise InvalidConfiguration("only what is installed can be recorded; leave out --record", field="record")
        chosen = [Target.in_file(address) if is_file(address) else find(address) for address in args.plugin]
        for record in () if args.record else chosen:
            if isinstance(record, PluginRecord):
                Target.of(record)  # raises for a kind without checks
        once = [record for i, record in enumerate(chosen) if record not in chosen[:i]]
        names = [_name(record) for record in once]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidConfiguration(
                f"two of the plugins are called {twice}; test them one at a time", field="plugin"
            )
        return once, args.lock or default_lock()
    if args.plugin:
        raise InvalidConfiguration("name plugins or give --config FILE, not both", field="config")
    from guideway import EngineConfig  # a host's class, only to read its files

    config = EngineConfig.load(args.config)
    # plugins that are not certified yet may be tested
    plugins = Plugins(PluginIndex.scan(), replace(config.plugins, require="installed"))
    records = list(dict.fromkeys(plugins.require(config.selection(plugins.index))))
    return records, args.lock or plugins.lock_file


def _name(record: PluginRecord | Target) -> str:
    return record.name if isinstance(record, Target) else record.id


def _test_all(args: Namespace, records: Sequence[PluginRecord | Target], lock: str) -> int:
    """Test several plugins, one after the other, and print all outcomes at the end."""
    came: dict[str, Outcome] = {}
    for form in FORMS:
        if folder := getattr(args, form):
            Path(folder).mkdir(parents=True, exist_ok=True)
    for record in records:
        name, recorded = _name(record), args.record and Path(lock).exists()
        if recorded and isinstance(record, PluginRecord) and Lock.read(lock).certification(record).accepted:
            came[name] = (0, "as it was recorded", "")
            continue
        try:
            came[name] = _test(args, record, lock, in_folders=True)
        except CannotLoad as error:
            print(f"guideway conform: {error}", file=sys.stderr)
            came[name] = (CANNOT_LOAD, "cannot be loaded", "")
        except KeyboardInterrupt:
            came[name] = (EXIT_STATUS["incomplete"], ENDED, "")
        print()
        if came[name][1] == ENDED:
            break
    nothing: Outcome = (EXIT_STATUS["incomplete"], "not begun", "")
    rows = [(name, *came.get(name, nothing)[1:]) for name in map(_name, records)]
    print_table(("PLUGIN", "CAME OF IT", "MET"), rows)
    statuses = {came.get(name, nothing)[0] for name in map(_name, records)}
    return next(status for status in GRAVEST_FIRST if status in statuses)


def _test(args: Namespace, record: PluginRecord | Target, lock: str, *, in_folders: bool) -> Outcome:
    """Test one plugin. Raises `CannotLoad`."""
    if isinstance(record, PluginRecord) and record.kind not in KIND_MODULES:
        return _accept_without_checks(record, lock if args.record else "")
    preferences = _read_preferences(record)
    target = record if isinstance(record, Target) else Target.of(record)
    target = replace(target, settings=preferences.settings(target.component))
    for name in preferences.strangers(target.component):
        print(
            f"guideway conform: {FILE_NAME}: [subjects.{name!r}] is about no installed plugin, and is not read here",
            file=sys.stderr,
        )
    terminal = Terminal()
    try:
        report = run(
            target,
            contract=args.contract,
            up_to=args.up_to,
            preferences=preferences,
            jobs=args.jobs,
            timeout_factor=args.timeout_factor,
            on_plan=terminal.begin,
            on_result=terminal.result,
        )
    except CannotLoad as error:
        raise CannotLoad(f"{target.name} cannot be loaded: {error}") from error
    terminal.end(report)
    status = EXIT_STATUS[report.verdict]
    if args.record and not _record(report, target, lock):
        status = status or EXIT_STATUS["incomplete"]
    for form, (suffix, text) in FORMS.items():
        if path := getattr(args, form):
            file = Path(path, f"{report.stem}{suffix}") if in_folders else Path(path)
            write = svg if form == "badge" and file.suffix == ".svg" else text
            write_file(file, write(report), field=form)
    ended = any(result.detail == INTERRUPTED for result in report.results)
    return status, ENDED if ended else report.verdict, f"{report.met} of {len(report.results)}"


def _accept_without_checks(record: PluginRecord, lock: str) -> Outcome:
    """Accept a plugin whose kind has no checks as it is installed, and add it to the lock file at `lock`, if given."""
    why = f"kind {record.kind} has no checks"
    if not lock:
        print(f"{record.id}: {why}")
        return 0, "has no checks", ""
    Lock.update(lock, lambda earlier: Lock({**earlier.plugins, **Lock.of([record]).plugins}))
    print(f"{record.id}: {why}; locked in {lock} as it is installed")
    return 0, "locked, has no checks", ""


def _read_preferences(record: PluginRecord | Target) -> Preferences:
    """Read the nearest ``conformance.toml``: from here, or else from the folder of the file or of an editable install's
    sources."""
    sources = str(Path(record.file).parent) if isinstance(record, Target) else record.editable
    file = Preferences.find(".") or (Preferences.find(sources) if sources else None)
    return Preferences.read(file) if file else Preferences()


def _record(report: Report, target: Target, path: str) -> bool:
    """Write the verdict to the lock file and return True; if that is impossible, print why and return False."""
    record = target.record()
    if report.verdict != "certified":
        print(f"not recorded in {path}: the verdict is {report.verdict}", file=sys.stderr)
        return False
    assert record is not None, "only what is installed is recorded"
    assert report.digest is not None
    verdict = Verdict(report.sha256, report.digest, report.contract, report.levels)
    try:
        Lock.update(path, lambda earlier: earlier.certified(record, verdict))
    except PluginUnavailable as error:
        print(f"not recorded in {path}: {error}", file=sys.stderr)
        return False
    print(f"recorded in {path}")
    return True


@contextlib.contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end a run like Ctrl-C: it reports its results and leaves no process behind."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
