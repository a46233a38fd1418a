"""List the installed plugins and their problems.

``guideway plugins`` and its subcommands. Only ``doctor --import`` imports plugins, in separate processes.
"""
# ruff: noqa: T201 - commands print

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import count, groupby
from pathlib import Path
from typing import Any

import importlib_metadata

from guideway.api import CONTRACT
from guideway.command_line.commands import installed
from guideway.command_line.terminal import print_json, print_table
from guideway.plugins.index import PluginIndex, PluginRecord, Problem
from guideway.plugins.kinds import KINDS, normalize
from guideway.plugins.lock import DEFAULT_LOCK, Certification, Lock, certifying_command, default_lock
from guideway.plugins.manager import Plugins
from guideway.plugins.selection import PluginSettings, matching

__all__ = ["add_plugins"]


def add_plugins(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add ``plugins`` and its subcommands."""
    summary = "what is installed, and what is wrong with it"
    plugins = subparsers.add_parser("plugins", help=summary, description=_sentence(summary))
    commands = plugins.add_subparsers(metavar="COMMAND", title="commands")

    def no_command(_: Namespace) -> int:
        plugins.print_help(sys.stderr)
        return 2

    plugins.set_defaults(run=no_command)

    def add(name: str, run: Any, summary: str, more: str = "") -> ArgumentParser:
        parser = commands.add_parser(name, help=summary, description=f"{_sentence(summary)} {more}".strip())
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.set_defaults(run=run)
        return parser

    list_ = add("list", _list, "list the installed plugins, without importing any")
    show = add("show", _show, "show all that is known of one plugin, without importing it")
    show.add_argument("plugin", metavar="ID", help="NAME, KIND.NAME, DISTRIBUTION/NAME or DISTRIBUTION/KIND.NAME")
    doctor = add(
        "doctor",
        _doctor,
        "look for problems, with --import also by importing each plugin",
        "Exit status: 0 no errors (there may be warnings and notes), 1 there are errors.",
    )
    doctor.add_argument("plugin", metavar="ID", nargs="*", help="with --import: only these")
    doctor.add_argument(
        "--import", dest="imports", action="store_true", help="also import each plugin, in a separate process"
    )
    doctor.add_argument(
        "--timeout", metavar="SECONDS", type=_seconds, default=60.0, help="how long one import may take (default: 60)"
    )
    for parser in (list_, show, doctor):
        parser.add_argument(
            "--lock", metavar="PATH", default=default_lock(), help=f"the lock file; default: {DEFAULT_LOCK}"
        )
    lock = add("lock", _lock, "record the installed plugins, by digest, in the lock file")
    lock.add_argument(
        "plugin",
        metavar="ID",
        nargs="*",
        help="only these; what else the file has stays (default: exactly what is installed)",
    )
    verify = add(
        "verify-lock",
        _verify_lock,
        "compare the installed plugins with the lock file",
        "Exit status: 0 every locked plugin is installed, with the version, entry point and file digest that were "
        "locked; 1 some are not, or there is no lock file. Plugins that are installed but not locked are named on "
        "standard error, and are a failure only with --strict.",
    )
    verify.add_argument("--strict", action="store_true", help="fail also if an installed plugin is not locked")
    for parser in (lock, verify):
        parser.add_argument(
            "--file", metavar="PATH", default=default_lock(), help=f"the lock file; default: {DEFAULT_LOCK}"
        )
    new = add("new", _new, "write a package to begin with, which passes its conformance checks as it is")
    kinds = ", ".join(kind.name for kind in KINDS.values() if not kind.unchecked)
    new.add_argument("kind", metavar="KIND", help=f"one of {kinds}")
    new.add_argument("name", metavar="NAME", help="of the component, such as 'mine'")
    new.add_argument("--distribution", default="", help="what pip calls it (default: guideway-NAME)")
    new.add_argument("--folder", type=Path, help="where to write it (default: the distribution's name, here)")


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


def _seconds(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise ValueError
    return float(text)


def _list(args: Namespace) -> int:
    plugins = Plugins(settings=PluginSettings(lock=args.lock))
    records, problems = _with_foreign(plugins.index).records, plugins.index.problems
    if args.json:
        print_json(
            {
                "contract": CONTRACT,
                "plugins": [_facts(plugins, record) for record in records],
                "problems": [asdict(problem) for problem in problems],
            }
        )
        return 0
    states = {r.id: plugins.state(r)[0] for r in records}
    wrong = {its_id: state for its_id, state in states.items() if state not in ("discovered", "loaded")}
    rows = [
        (
            f"{r.kind}.{r.name}",
            r.distribution,
            r.version,
            wrong.get(r.id) or ("" if (found := plugins.certification(r).state) == "unproven" else found),
        )
        for r in records
        if not r.is_for_tests
    ]
    print_table(("PLUGIN", "DISTRIBUTION", "VERSION", "STATE"), rows)
    if plugins.lock_problem:
        print(plugins.lock_problem, file=sys.stderr)
    if problems or wrong:
        print("there are problems; see: guideway plugins doctor", file=sys.stderr)
    return 0


def _with_foreign(index: PluginIndex) -> PluginIndex:
    """Return `index` with the records of plugins that are only available for other contracts."""
    offered = {record.id for record in index.records}
    return replace(index, records=(*index.records, *(r for r in index.foreign if r.id not in offered)))


def _show(args: Namespace) -> int:
    plugins = Plugins(settings=PluginSettings(lock=args.lock))
    records = matching(_with_foreign(plugins.index), args.plugin)
    found = [{**_facts(plugins, record), **_about(record)} for record in records]
    if args.json:
        concerned = {name for r in records for name in (r.id, r.distribution, r.location)}
        problems = [asdict(problem) for problem in plugins.index.problems if problem.plugin in concerned]
        print_json({"contract": CONTRACT, "plugins": found, "problems": problems})
        return 0
    for i, facts in enumerate(found):
        if i:
            print()
        facts["conformance"] = "{state}: {reason}".format_map(facts["conformance"])
        rows = {key: _lines(value) for key, value in facts.items()}
        width = max(len(key) for key, lines in rows.items() if lines)
        for key, lines in rows.items():
            for j, line in enumerate(lines):
                print(f"{'' if j else key:{width}}  {line}")
    return 0


def _doctor(args: Namespace) -> int:
    from guideway.plugins.doctor import examine
    from guideway.plugins.probe import probe

    if args.plugin and not args.imports:
        print("guideway plugins doctor: plugin names need --import; add it, or leave them out", file=sys.stderr)
        return 2
    index = PluginIndex.scan()
    problems = [] if args.plugin else [*examine(index), *_find_claims()]
    plugins = Plugins(index, PluginSettings(lock=args.lock))
    chosen = _select(index, args.plugin)
    certifications = {record.id: plugins.certification(record) for record in chosen}
    if plugins.lock_problem:
        fix = f"remove {args.lock}, then lock and certify the plugins again"
        problems.append(Problem("unreadable-lock", args.lock, plugins.lock_problem, fix, "error"))
    problems += _find_stale(index, certifications, args.lock)
    if args.imports:
        numbers = count(1)

        def begin(record: PluginRecord) -> None:
            if not args.json and sys.stderr.isatty():
                print(f"importing {next(numbers)}/{len(chosen)} {record.id}", file=sys.stderr)

        problems += probe(chosen, args.timeout, begin)
    failed = any(problem.severity == "error" for problem in problems)
    if args.json:
        found = {plugin_id: asdict(each) for plugin_id, each in certifications.items()}
        print_json({"ok": not failed, "problems": [asdict(problem) for problem in problems], "conformance": found})
        return int(failed)
    _print_problems(index, problems)
    serious = sum(problem.severity != "note" for problem in problems)
    checked = _count(len(chosen), "plugin")
    how = "imported in separate processes" if args.imports else "not imported; --import also imports them"
    print(f"{_count(serious, 'problem')} found ({checked}, {how})")
    if Path(args.lock).exists() and not plugins.lock_problem:
        states = Counter(each.state for each in certifications.values())
        print(f"{args.lock}: {', '.join(f'{number} {state}' for state, number in sorted(states.items()))}")
    return int(failed)


def _find_claims() -> list[Problem]:
    """Return a problem for each command that several distributions claim."""
    return [
        Problem(
            "conflict",
            f"command {command.name}",
            f"the command {command.name!r} is claimed by {' and by '.join(command.distributions)}",
            f"uninstall {' or '.join(name for name in command.distributions if name != command.owner)}",
        )
        for command in installed().values()
        if len(command.distributions) > 1
    ]


def _find_stale(index: PluginIndex, certifications: Mapping[str, Certification], lock: str) -> list[Problem]:
    """Return a problem for each plugin whose verdict in the lock file at `lock` is stale."""
    return [
        Problem(
            "stale-verdict",
            record.id,
            f"the verdict on {record} in {lock} is stale: {certifications[record.id].reason}",
            certifying_command([record], lock),
            "warning",
        )
        for record in index.records
        if record.id in certifications and certifications[record.id].state == "stale"
    ]


def _print_problems(index: PluginIndex, problems: Sequence[Problem]) -> None:
    """Print problems. The folder with the most plugins is printed once, not in each line."""
    places = [record.location for record in index.records]
    usual = max(places, key=places.count, default="")
    at_usual = re.compile(rf" at {re.escape(usual)}(?=[\s,;:)]|$)")
    if usual and any(at_usual.search(problem.message) for problem in problems):
        print(f"installed in {usual}, unless a line names another place:")
    for problem in problems:
        message = at_usual.sub("", problem.message) if usual else problem.message
        print(f"{problem.severity}: {message} [{problem.code}]\n  {problem.fix}")


def _lock(args: Namespace) -> int:
    chosen = _select(PluginIndex.scan(), args.plugin)

    def update(earlier: Lock) -> Lock:
        new = Lock.of(chosen, earlier)
        return Lock({**earlier.plugins, **new.plugins}) if args.plugin else new

    earlier, lock = Lock.update(args.file, update)
    new = {record.id for record in chosen}
    kept = sorted(lock.plugins.keys() - new)
    dropped = [
        plugin_id
        for plugin_id, before in earlier.plugins.items()
        if before.verdict and (plugin_id not in lock.plugins or not lock.plugins[plugin_id].verdict)
    ]
    for plugin_id in dropped:
        print(f"{plugin_id} is no longer certified, because it has changed or is no longer locked", file=sys.stderr)
    if args.json:
        print_json({"file": args.file, "plugins": sorted(new), "kept": kept, "no_longer_certified": sorted(dropped)})
    else:
        others = f", kept {_count(len(kept), 'other')}" if kept else ""
        print(f"locked {_count(len(new), 'plugin')} in {args.file}{others}")
    return 0


def _new(args: Namespace) -> int:
    from guideway.plugins.scaffold import new_package

    folder = args.folder or Path(normalize(args.distribution or f"guideway-{args.name}"))
    written = new_package(args.kind, args.name, folder, args.distribution)
    if args.json:
        print_json({"folder": str(folder), "files": [str(path) for path in written]})
        return 0
    print(*written, sep="\n")
    print(f"\nnext:\n  pip install -e '{folder}[test]'\n  guideway conform {args.kind}.{args.name}")
    return 0


def _verify_lock(args: Namespace) -> int:
    index, lock = PluginIndex.scan(), Lock.read(args.file)
    differences = lock.differences(index)
    unlocked = [record.id for record in index.records if record.id not in lock.plugins]
    stale = [record for record in index.records if lock.certification(record).state == "stale"]
    failed = bool(differences or (args.strict and unlocked))
    if args.json:
        went = {record.id: lock.certification(record).reason for record in stale}
        print_json({"ok": not failed, "differences": differences, "stale_verdicts": went, "unlocked": unlocked})
        return int(failed)
    rows = {
        **{plugin_id: list(found) for plugin_id, found in differences.items()},
        **({plugin_id: ["installed, not in the lock file"] for plugin_id in unlocked} if args.strict else {}),
    }
    for record in stale:
        rows.setdefault(record.id, []).append(f"its verdict went stale: {lock.certification(record).reason}")
    for distribution, of_it in groupby(sorted(rows), key=lambda plugin_id: plugin_id.partition("/")[0]):
        print(distribution)
        for plugin_id in of_it:
            print(f"  {plugin_id.partition('/')[2]}")
            print(*(f"    {row}" for row in rows[plugin_id]), sep="\n")
    if unlocked and not args.strict:
        print(f"installed, not in the lock file: {', '.join(unlocked)}", file=sys.stderr)
    if stale:
        print(f"what went stale is certified anew with: {certifying_command(stale, args.file)}", file=sys.stderr)
    if failed:
        print(
            f"{args.file} does not match the installed plugins; to accept them: guideway plugins lock", file=sys.stderr
        )
    else:
        number = len(lock.plugins)
        print(f"{_count(number, 'plugin')} {'is' if number == 1 else 'are'} as {args.file} says")
    return int(failed)


def _facts(plugins: Plugins, record: PluginRecord) -> dict[str, Any]:
    state, reason = plugins.state(record)
    return {
        "id": record.id,
        "state": state,
        "reason": reason,
        "conformance": asdict(plugins.certification(record)),
        "contract": record.group.removeprefix("guideway."),
        **{f.name: getattr(record, f.name) for f in fields(record) if f.compare and f.name != "group"},
        "provisional": record.kind not in KINDS or KINDS[record.kind].provisional,
    }


def _about(record: PluginRecord) -> dict[str, str | None]:
    """Return summary, author and license of the plugin's distribution; None for missing ones."""
    (dist, *_) = importlib_metadata.distributions(name=record.distribution, path=[record.location])
    metadata = dist.metadata
    authors = [text for key in ("Author", "Author-email") for text in metadata.get_all(key, ())]
    classified = [text for text in metadata.get_all("Classifier", ()) if text.startswith("License ::")]
    # older metadata may hold the whole text of the license
    license_line = (metadata.get("License") or "").strip().partition("\n")[0]
    return {
        "summary": metadata.get("Summary"),
        "author": ", ".join(authors) or None,
        "license": metadata.get("License-Expression") or license_line or ", ".join(classified) or None,
    }


def _select(index: PluginIndex, addresses: Sequence[str]) -> list[PluginRecord]:
    """Return the records that match `addresses`, each of which must match some; all records if there are none."""
    if not addresses:
        return list(index.records)
    return list(dict.fromkeys(record for address in addresses for record in matching(index, address)))


def _lines(value: object) -> list[str]:
    """Return the lines to print for a fact; none if it is empty."""
    if isinstance(value, tuple | list):
        return [str(item) for item in value]
    if value is None or value is False:
        return []
    return ["yes"] if value is True else str(value).splitlines()


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
