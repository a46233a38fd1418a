"""Make a vector of each text with an embedding model.

``guideway embed``.
"""

from __future__ import annotations

from argparse import ArgumentParser, _SubParsersAction

from guideway_engine.command_line.tasks import add

__all__ = ["add_embed"]


def add_embed(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add ``embed``."""
    parser = add(
        subparsers,
        "embed",
        "make a vector of each text",
        "Make a vector of each text with an embedding model. Prints a table to a terminal and JSON lines to a pipe; "
        "--output FILE.npy holds a float32 matrix, a row for each text, of NaN where there is no vector.",
    )
    parser.add_argument(
        "--dimensions", metavar="N", type=int, help="as many of a vector's first numbers (Matryoshka; default: all)"
    )
