"""Look for invalid texts that a strategy accepts without naming anything as not enforced.

``python tests/fuzz/differential.py [--seconds 240] [--schemas N] [--seed TEXT] [--strategy NAME ...]
[--chains] [--write]``
``python tests/fuzz/differential.py --again LINE``

Schemas are random and contain every pair of keywords that a strategy supports; texts are random, too, and a judge knows
the specification. Seconds are CPU seconds, divided among the strategies, two of which run at a time. A finding is made
small and printed as a line of JSON, which ``--again`` judges again. Exit status 1: an invalid text was accepted
silently, or a contract broken. Refused valid texts are counted, but are no failure.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # a program's path has only its own folder

from tests.fuzz.examining import Case, Examiner
from tests.fuzz.running import Found, run
from tests.support.json_strategies import STRATEGIES

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "fuzz.md"
LIBRARIES = ("guideway", "llguidance", "xgrammar", "outlines-core", "lm-format-enforcer", "jsonschema")
COLUMNS = (
    *("schemas", "judged", "named", "refused", "timeout", "texts", "taken"),
    *("pairs", "in reach", "often", "least", "silent", "over-strict", "broken"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240, help="of a processor, over all strategies")
    parser.add_argument("--schemas", type=int, default=sys.maxsize, help="of each strategy, at most")
    parser.add_argument("--seed", default="1", help="any text")
    parser.add_argument("--strategy", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--chains", action="store_true", help="examine each form of a schema that hosts would compile")
    parser.add_argument("--rare", action="store_true", help="list the pairs of keywords that were judged too seldom")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--again", metavar="LINE", help="judge one finding once more")
    options = parser.parse_args()
    if options.again is not None:
        return again(Case.from_json(options.again))
    each = options.seconds / len(options.strategy)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        tell = partial(print, flush=True)
        each_run = partial(run, chains=options.chains)
        runs = [pool.submit(each_run, name, options.seed, each, tell, options.schemas) for name in options.strategy]
        found = [future.result() for future in runs]
    table = "\n".join(lines(found))
    print(table)
    for each_found in found:
        for names, count in each_found.over_strict.most_common(5):
            print(f"over-strict: {each_found.strategy} {count} {' '.join(names)}")
    if options.rare:
        for each_found in found:
            print(f"rare: {each_found.strategy}", *each_found.rare, sep="\n  ")
    if options.write:
        command = f"python tests/fuzz/differential.py --seconds {options.seconds:g} --seed {options.seed}"
        command += f" --schemas {options.schemas}" if options.schemas != sys.maxsize else ""
        command += f" --strategy {' '.join(options.strategy)}" + " --chains" * options.chains
        versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
        about = f"Python {platform.python_version()}, {versions}; `{command}`"
        RESULTS.write_text(f"# Random schemas and texts\n\n{about}\n\n{table}\n{NOTES}", encoding="utf-8")
    return int(any(one.counts["silent"] or one.broken for one in found))


NOTES = """
Judged: schemas of which the strategy names nothing; of the others it names a keyword, or refuses them. Pairs: of
keywords that it supports, side by side or one inside the other; in reach: judged once in ten schemas that were written
for them, or not asked for 40 times; often: judged at least 200 times; least: how often the rarest in reach was. Silent:
invalid texts that were taken. Over-strict: valid ones, plainly written, that were not.
"""


def again(case: Case) -> int:
    """Judge a case again."""
    verdict = Examiner(case.strategy).verdict(case)
    print(f"{case.strategy}: {verdict}: {case.text!r} under {json.dumps(case.schema)}")
    return int(verdict == "silent")


def lines(found: Iterable[Found]) -> list[str]:
    """Return a table with a row for each strategy."""
    rows = [[one.strategy, *(f"{one.counts[column]:,}" for column in COLUMNS)] for one in found]
    return [
        f"| | {' | '.join(COLUMNS)} |",
        f"|---|{'---:|' * len(COLUMNS)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


if __name__ == "__main__":
    sys.exit(main())
