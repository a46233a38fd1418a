"""Detect a watermark in texts.

``guideway watermark detect --key KEY [FILE]``.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from guideway.api import InvalidRequest

from guideway_watermark.detection import Verdict, detect_gumbel_max, detect_kgw

__all__ = ["add_watermark"]


def add_watermark(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add ``watermark``."""
    parser = subparsers.add_parser("watermark", description="Detect a watermark in texts.")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    detect = actions.add_parser(
        "detect",
        description="Read JSON lines, each a list of token ids or an object with 'token_ids', as "
        "guideway generate --record writes. Print for each the number of tokens with evidence, their score, and the "
        "p-value: the probability of such a score without the watermark.",
    )
    detect.add_argument("file", nargs="?", default="-", help="default: standard input")
    detect.add_argument("--modifier", choices=("gumbel_max", "kgw"), default="gumbel_max")
    detect.add_argument("--key", type=int, required=True, help="the key of the request or the operator")
    detect.add_argument("--gamma", type=float, default=0.25, help="kgw: the share of green tokens")
    parser.set_defaults(run=_detect)


def _detect(args: Namespace) -> int:
    if not 0 <= args.key < 2**63 or not 0 < args.gamma < 1:
        raise InvalidRequest("--key must be from 0 to 2**63 - 1, --gamma between 0 and 1", field="key")
    with nullcontext(sys.stdin) if args.file == "-" else Path(args.file).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            print(json.dumps(asdict(_verdict(args, _token_ids(line, number)))))  # noqa: T201 - a command prints
    return 0


def _verdict(args: Namespace, token_ids: list[int]) -> Verdict:
    if args.modifier == "kgw":
        return detect_kgw(token_ids, args.key, args.gamma)
    return detect_gumbel_max(token_ids, args.key)


def _token_ids(line: str, number: int) -> list[int]:
    """Return the token ids in a line. Raises `InvalidRequest`."""
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    found = found.get("token_ids") if isinstance(found, dict) else found
    if not isinstance(found, list) or not all(type(i) is int and 0 <= i < 2**31 for i in found):
        raise InvalidRequest(f"line {number} must be a list of token ids or an object with 'token_ids'", field="file")
    return found
