"""Import a plugin in a separate process, where it may crash, hang or exit without harm.

``python -m guideway.plugins.probe ID`` runs that process, which prints one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from guideway.errors import PluginLoadError
from guideway.plugins.index import PluginIndex, PluginRecord, Problem

__all__ = ["probe"]

SLOW = 0.5
"""Seconds of an import above which `probe` returns a warning: heavy imports belong inside the hook's body."""


def probe(record: PluginRecord, timeout: float) -> Problem | None:
    """Import and check `record` in a subprocess, which is killed after `timeout` seconds. Return the problem, or
    None."""
    # the same search path as in this process, in the same order
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    command = [sys.executable, "-P", "-m", __name__, record.id]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:  # pipes could fill, or outlive a kill
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            return Problem(
                "import-timeout",
                record.id,
                f"{record} did not finish importing within {timeout:g} s",
                "report it to its author; --timeout SECONDS waits longer",
            )
        out.seek(0)
        err.seek(0)
        answer, noise = out.read(), err.read().decode(errors="replace").strip()
    if status or not answer:
        how = f"ends the process that imports it, with status {status}"
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else -status
            how = f"kills the process that imports it, by {name}"
        last_words = f"; it last said: {noise.splitlines()[-1]}" if noise else ""
        return Problem("import-crashed", record.id, f"{record} {how}", f"report it to its author{last_words}")
    result = json.loads(answer)
    if result["missing"]:
        module, install = result["missing"]
        return Problem(
            "extra-not-installed",
            record.id,
            f"{record} needs {module!r}, which is not installed here",
            f"to use it: pip install '{install}'",
            "note",
        )
    if result["error"]:
        message, *hints, _ = result["error"].splitlines()  # the last hint is to run this command
        return Problem("import-failed", record.id, message, "\n".join(hints).strip() or "report it to its author")
    if result["seconds"] > SLOW:
        return Problem(
            "import-slow",
            record.id,
            f"{record} takes {result['seconds']:.1f} s to import",
            "its author can move heavy imports into the hook's body",
            "warning",
        )
    return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its children."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _main(plugin_id: str) -> None:
    """Import the plugin and print the result; runs in the subprocess."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the plugin's output out of the answer
    from guideway.plugins import loading

    record = next(record for record in PluginIndex.scan().records if record.id == plugin_id)
    result: dict[str, object] = {"error": None, "missing": None, "seconds": 0.0}
    try:
        result["seconds"] = loading.load(record).import_seconds
    except PluginLoadError as error:
        result["error"] = str(error)
        install = loading.missing_extra(record, error.__cause__)
        if install:
            result["missing"] = (getattr(error.__cause__, "name", None), install)
    json.dump(result, answer)
    answer.flush()
    os._exit(0)  # skips threads and exit handlers of the plugin, which may hang


if __name__ == "__main__":
    _main(sys.argv[1])
