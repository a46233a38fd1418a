"""Make a vector of each text with an embedding model.

``guideway embed``.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, _SubParsersAction

from guideway_engine.command_line.tasks import add

__all__ = ["add_embed"]


def add_embed(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the command ``embed``."""
    parser = add(
        subparsers,
        "embed",
        "make a vector of each text",
        "Make a vector of each text with an embedding model. Prints a table to a terminal and JSON lines to a pipe; "
        "--output FILE.npy holds a float32 matrix, a row for each text, of NaN where there is no vector.",
    )
    parser.add_argument(
        "--dimensions",
        metavar="N",
        type=_at_least_1,
        help="as many of a vector's first numbers (Matryoshka; default: all)",
    )


def _at_least_1(text: str) -> int:
    """Parse an integer of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return number
