"""Follow a page like its reader, in this process: every block is run, used, compared or parsed.

A block of an unknown kind is an error, so that none is overlooked. A block that cannot be checked here has the reason
after the language in its first line: ``unchecked="..."``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

from guideway import Engine, EngineConfig
from guideway.plugins import Plugins
from guideway.plugins.kinds import KINDS
from guideway_conformance.known_failures import Preferences
from packaging.requirements import Requirement

from tests.docs.blocks import ROOT, Block, fenced, matches, run_block

QUICK = (
    ("coverage", "corpus.jsonl"),
    ("generate",),
    ("inspect",),
    ("config",),
    ("plugins", "list"),
    ("plugins", "new"),
)
"""Commands of `guideway` that are run. Others take minutes or need things that a page only invents, so only their
arguments are parsed."""


@dataclass
class Followed:
    """The results of a page."""

    folder: Path
    outputs: list[tuple[Block, str]] = field(default_factory=list)
    """Each block that was run, with its output."""
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    """The names that its Python blocks define."""

    def said(self, needle: str) -> str:
        """Return the output of the only block with `needle`."""
        (output,) = [output for block, output in self.outputs if needle in block.code]
        return output


def follow(page: str, folder: Path) -> Followed:
    """Follow the page at `page` in the empty `folder`, which gets links to the files at the top of the repository and
    in the page's folder. Afterwards environment and folder are restored, and engines are closed."""
    blocks = fenced(page)
    own = {Path(block.title).parts[0] for block in blocks if block.title}  # files that the reader creates
    for home in (ROOT, (ROOT / page).parent):
        for path in home.iterdir():
            if path.name[0] != "." and path.name not in own and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
    followed = Followed(folder)
    before = ""  # the output of the previous block
    path = mock.patch.object(sys, "path", [*sys.path, str(folder)])
    with contextlib.chdir(folder), mock.patch.dict(os.environ), path:
        try:
            for block, after in zip(blocks, [*blocks[1:], None], strict=True):
                with _blame(f"{page}:{block.line}"):
                    before = _do(block, after, before, folder, followed)
        finally:
            for value in followed.names.values():
                if isinstance(value, Engine):
                    value.close()
    return followed


def _do(block: Block, after: Block | None, before: str, folder: Path, followed: Followed) -> str:
    if block.unchecked:
        return ""
    if block.title:
        path = folder / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.code, encoding="utf-8")
    match block.language:
        case "python" if block.title:
            _check_imports(block.code)
            return ""
        case "python":
            output = _run_python(block, after, followed.names)
        case "sh" | "bash":
            output = "".join(_run_command(words) for words in commands(block.code))
        case "toml":
            _check_toml(block.code)
            return ""
        case "json":
            json.loads(block.code)
            return ""
        case "jsonl":
            for line in block.code.splitlines():
                json.loads(line)
            return ""
        case "text":
            assert before, "it shows what no block before it prints; a picture has no language"
            assert matches(block.code, before), f"it shows\n{block.code}but that is\n{before}"
            return ""
        case "mermaid":
            return ""
        case "":
            hidden = [line for line in block.code.splitlines() if line.split(" ")[0] in PROGRAMS]
            assert not hidden, f"these are commands, and a picture has no language: {hidden}"
            return ""
        case _:
            raise AssertionError(f"nobody knows what to do with a block of {block.language}")
    followed.outputs.append((block, output))
    return output


@contextlib.contextmanager
def _blame(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"in the block at {where}")
        raise


# Python and TOML


def _run_python(block: Block, after: Block | None, names: dict[str, Any]) -> str:
    """Return the block's output; if it ends with an exception that the page shows, return that."""
    try:
        return run_block(block.code, f"<block at line {block.line}>", names)
    except Exception as error:
        shown = f"{type(error).__name__}: {error}"
        if after is None or after.language != "text" or not after.code.startswith(type(error).__name__):
            raise
        return shown if " ".join(after.code.split()) != " ".join(shown.split()) else after.code


def _check_imports(code: str) -> None:
    """Check that everything exists that a reader's file imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = import_module(str(node.module))
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing, f"{node.module} has no {missing}"


def _check_toml(code: str) -> None:
    """Check that guideway's readers of such files accept the tables."""
    tables = tomllib.loads(code)
    match sorted(tables):
        case ["project"]:
            for entry in tables["project"]["entry-points"]["guideway.v1"]:
                assert entry.partition(".")[0] in KINDS, entry
        case ["known_failures", "subjects"] | ["known_failures"] | ["subjects"]:
            Path("conformance.toml").write_text(code, encoding="utf-8")
            Preferences.read("conformance.toml")
        case _:
            Path("guideway.toml").write_text(code, encoding="utf-8")
            EngineConfig.load("guideway.toml", environ={}, **({} if "model" in tables else {"model": "demo"}))


# Commands


def commands(code: str) -> Iterator[list[str]]:
    """Yield the words of each command; a quoted word or a backslash may continue it on the next line."""
    pending = ""
    for line in code.splitlines(keepends=True):
        pending += line
        if pending.endswith("\\\n"):
            pending = pending[:-2]
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quotation that is still open
            continue
        pending = ""
        if words:
            yield words
    assert not pending, f"the command does not end: {pending}"


def _run_command(words: list[str]) -> str:
    """Return the standard output of a command, unless it is redirected to a file."""
    environment = {}
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name, _, environment[name] = words.pop(0).partition("=")
    target = None
    if ">" in words:
        *words, _, target = words
    program, *arguments = words
    assert program in PROGRAMS, f"nobody knows what to do with the program {program!r}"
    with mock.patch.dict(os.environ, environment) if environment else contextlib.nullcontext():
        output = PROGRAMS[program](arguments)
    if target is None:
        return output
    Path(target).write_text(output, encoding="utf-8")
    return ""


class _Parsed(BaseException):  # not an Exception, so that no program handles it
    """The arguments of a program were parsed; raised to stop it."""


def _program(arguments: list[str], run: Callable[[], object], *, parse_only: bool) -> str:
    """Run a program written in Python with these arguments, or only parse them. Return its output."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse(self: argparse.ArgumentParser, *args: Any) -> Any:
        namespace = parse_args(self, *args)
        if hasattr(namespace, "rest"):  # `guideway` parses its command first, and then the command's arguments
            return namespace
        raise _Parsed

    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    status: object = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(printed))
        stack.enter_context(mock.patch.object(sys, "argv", ["program", *arguments]))
        if parse_only:
            stack.enter_context(mock.patch.object(argparse.ArgumentParser, "parse_args", parse))
        try:
            run()
            assert not parse_only, "it takes arguments without parsing them"
        except _Parsed:
            return ""
        except SystemExit as done:
            status = done.code
    assert not status, f"{arguments} ended with status {status}"
    return printed.buffer.getvalue().decode()  # type: ignore[attr-defined]


def _guideway(arguments: list[str]) -> str:
    (program,) = metadata.distribution("guideway").entry_points.select(group="console_scripts", name="guideway")
    quick = any(tuple(arguments[: len(words)]) == words for words in QUICK)
    return _program(arguments, lambda: sys.exit(program.load()()), parse_only=not quick)


def _python(arguments: list[str]) -> str:
    """Parse the arguments of programs of this repository: they would take minutes or more."""
    first, *rest = arguments
    if first != "-m":
        return _program(rest, lambda: runpy.run_path(first, run_name="__main__"), parse_only=True)
    module, *rest = rest
    if module == "pytest":
        assert all(Path(word).exists() for word in rest), rest
        return ""
    if module == "vllm.entrypoints.openai.api_server":
        option, model, *rest = rest
        assert option == "--model"
        return _vllm(["serve", model, *rest])
    spec = find_spec(module)
    assert spec is not None and spec.origin, f"there is no module {module}"
    return _program(rest, lambda: runpy.run_path(str(spec.origin), run_name="__main__"), parse_only=True)


def _pip(arguments: list[str]) -> str:
    """Check that pip would install only projects of this repository, with existing extras, or packages that are
    installed here. Installs nothing."""
    command, *rest = arguments
    assert command == "install", command
    parser = argparse.ArgumentParser("pip install")  # pip's own imports distutils, which conflicts with setuptools
    parser.add_argument("wanted", nargs="*", default=[])
    parser.add_argument("-e", "--editable", action="append", default=[])
    parser.add_argument("--no-deps", action="store_true")
    parser.add_argument("--target")
    options = parser.parse_intermixed_args(rest)
    files = [ROOT / "pyproject.toml", *ROOT.glob("*/*/pyproject.toml")]
    projects = {project["name"]: project for project in map(_project, files)}
    for wanted in [*options.wanted, *options.editable]:
        folder, _, listed = wanted.partition("[")
        if Path(folder).is_dir():
            project, extras = _project(Path(folder) / "pyproject.toml"), set(listed.rstrip("]").split(",")) - {""}
        else:
            requirement = Requirement(wanted)
            if requirement.name not in projects:
                metadata.distribution(requirement.name)
                continue
            project, extras = projects[requirement.name], requirement.extras
        missing = extras - project.get("optional-dependencies", {}).keys()
        assert not missing, f"{wanted}: {project['name']} has no extras {missing}"
    return ""


def _project(path: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))["project"]
    return project


def _source(arguments: list[str]) -> str:
    assert len(arguments) == 1 and arguments[0].endswith("/bin/activate"), "only a virtual environment is activated"
    return ""


def _make(arguments: list[str]) -> str:
    subprocess.run(["make", "--dry-run", "-C", ROOT, *arguments], check=True, capture_output=True)
    return ""


def _vllm(arguments: list[str]) -> str:
    """Check that guideway accepts its configuration, and that the components exist; `tests.vllm` tests the rest."""
    from guideway_vllm.config import GuestConfig

    assert arguments[0] == "serve", arguments
    given = json.loads(arguments[arguments.index("--additional-config") + 1])
    vllm_config = SimpleNamespace(
        additional_config=given,
        device_config=SimpleNamespace(device_type="cpu"),
        parallel_config=SimpleNamespace(worker_extension_cls=""),
        speculative_config=None,
    )
    config = GuestConfig.of(vllm_config)
    assert config is not None, "it configures no guideway"
    config.plan(Plugins(settings=config.plugins))
    return ""


def _export(arguments: list[str]) -> str:
    os.environ.update(argument.split("=", 1) for argument in arguments)  # type: ignore[misc]
    return ""


def _curl(arguments: list[str]) -> NoReturn:
    raise AssertionError(f"there is no server here for curl {arguments}")


PROGRAMS: Mapping[str, Callable[[list[str]], str]] = {
    ".": _source,
    "curl": _curl,
    "export": _export,
    "guideway": _guideway,
    "make": _make,
    "pip": _pip,
    "python": _python,
    "vllm": _vllm,
}
