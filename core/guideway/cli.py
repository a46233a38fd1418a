"""The ``guideway`` program. Each command's module is imported only when that command is chosen."""
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser, RawDescriptionHelpFormatter, _SubParsersAction
from collections.abc import Sequence
from importlib import import_module

import guideway
from guideway.api.errors import GuidewayError

__all__ = ["main"]

COMMANDS = {
    # command: (function that adds its parser to the subparsers, help); the parser sets `run(args) -> exit status`
    "generate": ("guideway.engine.commands:add_generate", "answer prompts with a model, under a constraint"),
    "plugins": ("guideway.plugins.commands:add_plugins", "what is installed, and what is wrong with it"),
}
ENABLE_VARIABLE = "GUIDEWAY_PLUGINS_ENABLE"

EPILOG = f"""\
Enabled plugins of kind 'hooks' may add commands: name them with --enable-plugin or,
separated by commas, in the environment variable {ENABLE_VARIABLE}."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0 done, 1 a problem (described on standard error), 2 wrong usage,
    130 interrupted."""
    try:
        return _run(sys.argv[1:] if argv is None else list(argv))
    except GuidewayError as error:
        print(f"guideway: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("guideway: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader, such as `head`, has seen enough; Python would complain again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(argv: list[str]) -> int:
    parser = _parser(add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("command", nargs="?")
    parser.add_argument("rest", nargs=REMAINDER)
    try:
        head = parser.parse_args(argv)
        enabled = [*_listed(os.environ.get(ENABLE_VARIABLE, "")), *head.enable_plugin]
        if head.help or head.command is None:
            _help(enabled).print_help(sys.stdout if head.help else sys.stderr)
            return 0 if head.help else 2
        full = _parser()
        subparsers = full.add_subparsers(metavar="COMMAND", required=True)
        if head.command in COMMANDS:
            module, _, function = COMMANDS[head.command][0].partition(":")
            getattr(import_module(module), function)(subparsers)
        else:
            _add_enabled(subparsers, enabled)
            if head.command not in subparsers.choices:
                return _unknown(head.command, [*COMMANDS, *subparsers.choices])
        args = full.parse_args([head.command, *head.rest])
    except SystemExit as done:  # argparse has printed help, a version or a usage error
        return done.code if isinstance(done.code, int) else 2
    return int(args.run(args))


def _parser(*, add_help: bool = True) -> ArgumentParser:
    parser = ArgumentParser(
        prog="guideway",
        description=guideway.__doc__.partition("\n")[0] if guideway.__doc__ else None,
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        add_help=add_help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"guideway {guideway.__version__}")
    parser.add_argument(
        "--enable-plugin", metavar="NAME", action="append", default=[], help="enable a 'hooks' plugin (repeatable)"
    )
    return parser


def _help(enabled: list[str]) -> ArgumentParser:
    """A parser that knows every command's name and nothing else, for its help."""
    parser = _parser()
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, (_, summary) in COMMANDS.items():
        subparsers.add_parser(name, help=summary)
    _add_enabled(subparsers, enabled)
    return parser


def _add_enabled(subparsers: _SubParsersAction[ArgumentParser], enabled: list[str]) -> None:
    """Let the enabled plugins add their commands."""
    if not enabled:
        return
    from guideway.plugins import Plugins, PluginSettings
    from guideway.plugins.loading import load_error

    plugins = Plugins(settings=PluginSettings(enable=tuple(enabled)))
    for hook in plugins.hooks().commands:
        try:
            hook(app=subparsers)
        except (Exception, SystemExit) as cause:
            raise load_error(plugins.record(hook.plugin), "adding its commands", cause) from cause


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _unknown(command: str, known: list[str]) -> int:
    import difflib

    close = difflib.get_close_matches(command, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    print(
        f"guideway: no command {command!r}; {hint}commands: {', '.join(known)}. A plugin's command needs that plugin "
        "enabled (--enable-plugin NAME)",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
