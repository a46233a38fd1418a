"""Output of commands at a terminal of 80 columns, and in a pipe."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.support.terminal import shown_at_terminal

COLOR = re.compile(r"\x1b\[\d+m")


def shown(*arguments: str, **environment: str) -> str:
    """Return the output of a command at a terminal."""
    status, text = shown_at_terminal([sys.executable, "-m", "guideway", *arguments], environment=environment)
    assert status == 0
    return text


@pytest.mark.parametrize("arguments", [("plugins", "list"), ("config", "show", "--model", "m" * 60)])
def test_a_list_fits_a_terminal_but_for_a_cell_that_does_not(arguments: tuple[str, ...]) -> None:
    lines = shown(*arguments).splitlines()
    assert all(len(line) <= 80 or len(line.split("  ")) < 3 for line in lines)
    piped = subprocess.run([sys.executable, "-m", "guideway", *arguments], capture_output=True, text=True, check=True)
    words = sorted(" ".join(lines).split())
    assert words == sorted(piped.stdout.split())
    if arguments[0] == "plugins":  # one line each
        assert len(lines) == len(piped.stdout.splitlines())
    else:
        assert len(lines) > len(piped.stdout.splitlines())


@pytest.mark.slow
def test_json_at_a_terminal_is_colored_and_can_be_copied() -> None:
    model = 'a " 1 true: \x1b[0m ' + "long " * 30
    arguments = ("config", "show", "--json", "--model", model)
    colored = shown(*arguments)
    assert '\x1b[34m"model"\x1b[0m: {' in colored
    assert "\x1b[36mnull\x1b[0m" in colored
    plain = shown(*arguments, NO_COLOR="1")
    assert "\x1b" not in plain
    assert COLOR.sub("", colored) == plain
    piped = subprocess.run([sys.executable, "-m", "guideway", *arguments], capture_output=True, text=True, check=True)
    assert piped.stdout == plain
    assert json.loads(plain)["model"] == {"value": model, "source": "--model"}
