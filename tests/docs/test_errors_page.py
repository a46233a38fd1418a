"""``docs/errors.md`` agrees with the code on every public error, and has every exit code in a command's help."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import guideway
import pytest
from guideway import errors
from guideway_conformance.certifying import CANNOT_LOAD, EXIT_STATUS

from tests.docs.blocks import ROOT
from tests.support.stages import one_in

PAGE = (ROOT / "docs/errors.md").read_text("utf-8")


def public() -> list[type[BaseException]]:
    named = [getattr(errors, name) for name in errors.__all__] + [getattr(guideway, name) for name in guideway.__all__]
    return [value for value in dict.fromkeys(named) if inspect.isclass(value) and issubclass(value, BaseException)]


def added(error: type[BaseException]) -> tuple[str, ...]:
    """Return the keyword-only parameters that `error` has and none of its bases."""

    def own(cls: type) -> set[str]:
        parameters = inspect.signature(cls.__init__).parameters if "__init__" in vars(cls) else {}
        return {name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}

    inherited = set().union(*(own(base) for base in error.__mro__[1:]))
    return tuple(sorted(own(error) - inherited))


def test_it_has_every_error_as_the_code_has_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \| ((?:`\w+`(?:, )?)*) ?\|", PAGE, re.MULTILINE)
    shown = {
        name: (re.findall(r"\w+", bases), tuple(sorted(re.findall(r"\w+", fields)))) for name, bases, fields in rows
    }
    assert len(shown) == len(rows), "an error has two rows"
    assert shown == {e.__name__: ([base.__name__ for base in e.__bases__], added(e)) for e in public()}


def codes(command: str) -> set[int]:
    return {int(code) for code in re.findall(rf"^\| {re.escape(command)} \| (\d+) \|", PAGE, re.MULTILINE)}


def test_it_has_the_exit_codes_of_conform() -> None:
    assert codes("`conform`") == {*EXIT_STATUS.values(), CANNOT_LOAD}


@pytest.mark.parametrize(
    ("command", "words"),
    one_in(
        6,
        [
            ("every command", []),
            ("`generate`", ["generate"]),
            ("`conform`", ["conform"]),
            ("`conform verify`", ["conform", "verify"]),
            ("`coverage`", ["coverage"]),
            ("`plugins doctor`", ["plugins", "doctor"]),
        ],
    ),
)
def test_it_has_the_exit_codes_that_help_names(command: str, words: list[str]) -> None:
    run = [sys.executable, "-m", "guideway", *words, "--help"]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    named = re.split("exit status:", " ".join(said.split()), flags=re.IGNORECASE)[1]
    found = {int(code) for code in re.findall(r"(?:^|[;,.\s])(\d{1,3})\s", named)}
    # `generate` shares the codes for wrong usage and interruption with every command
    assert found and found <= codes(command) | codes("every command")
    assert codes(command) <= found
