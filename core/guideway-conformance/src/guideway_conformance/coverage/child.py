"""The process that judges cases, one at a time: it is replaced if it ends.

``python -m guideway_conformance.coverage.child`` is this process. Standard input has JSON lines: the chains of
strategies and the order of properties, then a chain's number and a case each. Standard output has JSON lines: nothing,
or the error, once the strategies are built; then a verdict for each case.
`guideway_conformance.coverage.processes` is the client.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any, BinaryIO

from guideway.errors import GuidewayError
from guideway.json_schema.prober import byte_vocabulary
from guideway.plugins import Plugins
from guideway.plugins.building import build_strategies

from guideway_conformance.coverage.corpora import Case
from guideway_conformance.coverage.judging import Verdict, judge

__all__ = ["main"]

MAX_DETAIL = 2000
RECURSION = 20_000
"""Python's own limit is less than the nesting that limits of constraints allow."""


def main() -> None:
    """Run the process."""
    commands, channel = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # output of libraries must not mix with the verdicts
    sys.setrecursionlimit(RECURSION)
    opening = json.loads(commands.readline())
    sys.path[:] = opening["path"]
    names = list(dict.fromkeys(name for chain in opening["chains"] for name in chain))
    try:
        plugins = Plugins()
        classes = {name: plugins.load("grammar", name) for name in names}
        built = build_strategies(list(classes.values()), byte_vocabulary(), {})
    except GuidewayError as error:
        _send(channel, {"failed": str(error)})
        return
    _send(channel, {})
    for line in commands:
        number, row = json.loads(line)
        chain = opening["chains"][number]
        case = Case(**row)
        try:
            chosen = {(own := classes[name].name): built[own] for name in chain}
            verdict = judge(",".join(chain), case, chosen, opening["order"])
        except Exception as error:
            what = f"{type(error).__name__}: {error}"[:MAX_DETAIL]
            verdict = Verdict(",".join(chain), case.name, case.dataset, "failed", what)
        _send(channel, asdict(verdict))
    os._exit(0)  # threads of libraries must not keep it


def _send(channel: BinaryIO, message: dict[str, Any]) -> None:
    channel.write(json.dumps(message).encode() + b"\n")
    channel.flush()


if __name__ == "__main__":
    main()
