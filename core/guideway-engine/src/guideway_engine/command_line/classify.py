"""Label texts, or pairs of texts, with a classifier.

``guideway classify``.
"""

from __future__ import annotations

from argparse import ArgumentParser, _SubParsersAction

from guideway_engine.command_line.tasks import add

__all__ = ["add_classify"]


def add_classify(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the command ``classify``."""
    add(
        subparsers,
        "classify",
        "label texts",
        "Label texts, or pairs of texts, with a sequence classifier. Prints a table to a terminal and JSON lines to a "
        "pipe.",
    )
