"""Make a plan, check it in a worker process, and print the worker's result.

usage: worker_program.py METHOD [FILE]     METHOD is fork, forkserver or spawn; FILE is changed after planning
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path
from typing import Any

from guideway.errors import PluginError
from guideway.plugins import PluginPlan, Plugins, PluginSettings, bootstrap_worker


def worker(plan: PluginPlan, answers: Any) -> None:
    try:
        plugins = bootstrap_worker(plan)
        again = bootstrap_worker(plan)
        answers.put(f"{plugins.load('grammar', 'good').name} {plan.fingerprint} {again is plugins}")
    except PluginError as error:
        answers.put(f"{type(error).__name__} {error.plugin} {error}")


def main(method: str, changed: str | None = None) -> None:
    plan = Plugins(settings=PluginSettings(deny=("gwt-none/*",))).plan([("grammar", "good")], {"seed": 1})
    bootstrap_worker(plan)  # a forked worker inherits this, but must check for itself
    if changed:
        path = Path(changed)
        path.write_text(path.read_text() + "# changed\n")
    context: Any = multiprocessing.get_context(method)
    answers = context.Queue()
    process = context.Process(target=worker, args=(plan, answers))
    process.start()
    answer = answers.get(timeout=60)
    process.join()
    print(plan.fingerprint)
    print(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
