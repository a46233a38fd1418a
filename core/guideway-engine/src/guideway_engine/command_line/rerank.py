"""Score how relevant documents are to a query, with a cross-encoder.

``guideway rerank``.
"""

from __future__ import annotations

from argparse import ArgumentParser, _SubParsersAction

from guideway_engine.command_line.tasks import add

__all__ = ["add_rerank"]


def add_rerank(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the command ``rerank``."""
    add(
        subparsers,
        "rerank",
        "score documents for a query",
        "Score how relevant documents are to a query, with a cross-encoder. Prints a table to a terminal, the best "
        "document first, and JSON lines to a pipe, in the order of the input.",
    )
