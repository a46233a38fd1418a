"""The ``guideway`` program. Commands are found in metadata; a command's module is imported when it is called.

A command's ``run`` gets the parsed arguments. For every command, ``args.enable_plugin`` is a tuple of the resolved ids
(``distribution/hooks.name``) of the plugins that ``--enable-plugin`` and GUIDEWAY_PLUGINS_ENABLE name, in order,
without duplicates. Commands that start a host pass it to ``PluginSettings(enable=args.enable_plugin)``.
``args.enabled_by_flag`` holds the ids that the flag names, and ``args.words`` the words after the command's name.
"""
# ruff: noqa: T201 - commands print

from __future__ import annotations

import os
import sys
from argparse import (
    REMAINDER,
    Action,
    ArgumentError,
    ArgumentParser,
    RawDescriptionHelpFormatter,
    _AppendAction,
)
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper, UnsupportedOperation
from typing import TYPE_CHECKING, Any, NoReturn

from guideway.command_line.commands import HELP, Command, find, installed
from guideway.command_line.signals import status_of
from guideway.command_line.usage import WrongUsage
from guideway.errors import GuidewayError, PluginError, PluginExited, did_you_mean, printable
from guideway.plugins import loading
from guideway.plugins.trial import marked_interrupts
from guideway.version import __version__

if TYPE_CHECKING:
    from guideway.plugins import Plugins

__all__ = ["main"]

ENABLE_VARIABLE = "GUIDEWAY_PLUGINS_ENABLE"

BROUGHT_BY = {
    **dict.fromkeys(("conform", "coverage"), "conformance"),
    **dict.fromkeys(("classify", "config", "embed", "generate", "inspect", "rerank", "serve"), "engine"),
}
"""The extra that installs a command of the other guideway distributions, by command."""

EPILOG = f"""\
Plugins of kind 'hooks' act only if they are enabled: name them with
--enable-plugin or, separated by commas, in {ENABLE_VARIABLE}.

exit status:
  0    done
  1    an error, described on standard error; also an unknown plugin
  2    wrong usage: an unknown command or option, or an invalid value; also a
       plugin that ends the process which imports it
  130  interrupted
  143  ended by SIGTERM"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status (see `EPILOG`). Errors are printed to standard error."""
    _reopen_what_is_closed()
    _print_anything()
    loading.forks_first = True
    try:
        status = _run(sys.argv[1:] if argv is None else list(argv))
        print(end="", flush=True)  # a full disk should fail here, not when Python exits
        return status
    except GuidewayError as error:
        print(printable("\n  ".join([f"guideway: {error}", *getattr(error, "__notes__", ())])), file=sys.stderr)
        return 2 if isinstance(error, WrongUsage | PluginExited) else 1
    except KeyboardInterrupt as interrupt:
        print("guideway: interrupted", file=sys.stderr)
        return status_of(interrupt)
    except OSError as error:
        return _report_failure(error)
    finally:
        loading.forks_first = False


def _reopen_what_is_closed() -> None:
    """Reopen standard streams that were closed at the start, so that the next opened file does not get their
    descriptors. Writes to standard output still fail; writes to standard error are discarded."""
    for number, name, mode in ((0, "", os.O_WRONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, mode), number)
            if name:
                setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def _print_anything() -> None:
    """Make the standard streams escape characters that they cannot encode, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _report_failure(error: OSError) -> int:
    """Report a failed read or write in one line."""
    where = ""
    try:
        print(end="", flush=True)
        with suppress(UnsupportedOperation):  # a stand-in for standard output, in a test
            os.write(sys.stdout.fileno(), b"")  # the failed flush may have emptied the buffer
    except OSError:
        # Python would complain again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        where = "cannot write to standard output: "
    if not isinstance(error, BrokenPipeError):  # the reader, such as `head`, closed the pipe
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        print(printable(f"guideway: {where}{error.strerror if where else error}{notes}"), file=sys.stderr)
    return 1


def _run(argv: list[str]) -> int:
    parser = _parser(add_help=False)
    parser.usage = "guideway [-h] [--version] [--enable-plugin NAME] COMMAND ..."
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("command", nargs="?")
    parser.add_argument("rest", nargs=REMAINDER)
    try:
        head = parser.parse_args(argv)
        if head.command == HELP:  # `help plugins list` is `plugins list --help`
            words = [word for word in head.rest if not word.startswith("-") and word != HELP]
            head.command, *head.rest = [*words, "--help"] if words else [None]
            head.help = not words
        plugins, by_flag = _enable_plugins(head.enable_plugin)
        if head.help or head.command is None:
            _help(installed()).print_help(sys.stdout if head.help else sys.stderr)
            return 0 if head.help else 2
        full = _parser()
        subparsers = full.add_subparsers(metavar="COMMAND", required=True)
        command = find(head.command)
        if command is None:
            return _report_unknown(head.command, list(installed()))
        with marked_interrupts():
            command.add_to(subparsers)
        args = full.parse_args([head.command, *head.rest])
    except SystemExit as done:  # argparse has printed help, a version or a usage error
        return done.code if isinstance(done.code, int) else 2
    args.enable_plugin = plugins.settings.enable if plugins else ()
    args.enabled_by_flag = by_flag
    args.words = tuple(head.rest)
    return int(args.run(args))


class _Parser(ArgumentParser):
    """A parser that suggests corrections of misspelled words. Its subparsers are of this class too, so each reports
    its own unknown options under its own usage."""

    _words: Sequence[str] = ()

    def __init__(self, **options: Any) -> None:
        # an abbreviation that works today would be ambiguous tomorrow
        super().__init__(**{"allow_abbrev": False} | options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = args or ()
        self._given: set[Action] = set()
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def _get_values(self, action: Action, arg_strings: list[str]) -> Any:
        # called for each occurrence of an option; argparse would silently keep only the last
        if action.option_strings and not isinstance(action, _AppendAction):
            if action in self._given:
                raise ArgumentError(action, "is given twice; keep one")
            self._given.add(action)
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        # a misspelled option may cause any error, such as a missing required option
        options = [word.partition("=")[0] for word in self._words if word.startswith("--")]
        known = self._option_string_actions
        hints = [hint for option in options if option not in known and (hint := did_you_mean(option, known))]
        super().error("; ".join([message, *hints]))

    def _check_value(self, action: Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except ArgumentError as error:
            hint = did_you_mean(str(value), map(str, action.choices or ()))
            error.message += f"; {hint}" if hint else ""
            raise


def _parser(*, add_help: bool = True) -> _Parser:
    parser = _Parser(
        prog="guideway",
        description="Structured output and logit modification in LLM inference, by plugins.",
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        add_help=add_help,
    )
    parser.add_argument("--version", action="version", version=f"guideway {__version__}")
    parser.add_argument(
        "--enable-plugin", metavar="NAME", action="append", default=[], help="enable a 'hooks' plugin (repeatable)"
    )
    return parser


def _help(commands: Mapping[str, Command]) -> ArgumentParser:
    """Return a parser with the name and summary of every command, to print the help."""
    parser = _parser()
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, command in commands.items():
        summary = "this text; 'help COMMAND' is 'COMMAND --help'" if name == HELP else command.summary()
        subparsers.add_parser(name, help=f"{summary[:1].lower()}{summary[1:]}".replace("%", "%%"))
    return parser


def _enabled(plugins: Plugins, name: str) -> str:
    """Return the id of a 'hooks' plugin, or the address of an operator's own file."""
    record = plugins.resolve("hooks", name)
    return record.value if record.is_file else record.id


def _enable_plugins(flags: list[str]) -> tuple[Plugins | None, tuple[str, ...]]:
    """Return the installed plugins, with those enabled that `flags` and the environment name (None if they name none),
    and the ids of the plugins that `flags` name. Resolves every name and imports nothing. Raises `PluginError`."""
    listed = [name.strip() for name in os.environ.get(ENABLE_VARIABLE, "").split(",") if name.strip()]
    if not listed and not flags:
        return None, ()
    from guideway.plugins import Plugins, PluginSettings

    plugins = Plugins()
    try:
        ids = [_enabled(plugins, name) for name in listed]
    except PluginError as error:
        raise type(error)(
            f"{error}\n  it comes from the environment variable {ENABLE_VARIABLE}", plugin=error.plugin
        ) from error
    by_flag = [_enabled(plugins, name) for name in flags]
    enabled = PluginSettings(enable=tuple(dict.fromkeys(ids + by_flag)))
    return Plugins(plugins.index, enabled), tuple(dict.fromkeys(by_flag))


def _report_unknown(command: str, known: list[str]) -> int:
    if command in BROUGHT_BY:
        what = f"the command {command!r} is not installed: pip install 'guideway[{BROUGHT_BY[command]}]'"
    else:
        hint = did_you_mean(command, {*known, *BROUGHT_BY})
        what = f"no command {command!r}; {hint and f'{hint} '}commands: {', '.join(known)}"
    print(f"guideway: {what}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
