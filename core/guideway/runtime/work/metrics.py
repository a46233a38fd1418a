"""Metrics for operators, in the default registry of the Prometheus client library.

A server that exposes this registry, as vLLM does at ``/metrics``, exposes them too. vLLM's guest adds
those of its engine cores. To combine several processes of another server, set ``PROMETHEUS_MULTIPROC_DIR``.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

__all__ = [
    "CACHE_BYTES",
    "CLOSED_EARLY",
    "COMPILE_SECONDS",
    "DEADLINES_MISSED",
    "FILL_SECONDS",
    "HOSTS_ENDED",
    "HOSTS_STARTED",
    "HOST_BYTES",
    "LATE_ROWS",
    "LEFT_OUT",
    "LOST_THREADS",
    "QUARANTINES",
    "STEP_SECONDS",
    "WORKER_RESTARTS",
]

COMPILE_SECONDS = Histogram(
    "guideway_compile_seconds",
    "Seconds by the clock in which a grammar strategy compiled a constraint, or failed to",
    ["strategy"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)
FILL_SECONDS = Histogram(
    "guideway_fill_seconds",
    "Seconds by the clock in which a grammar strategy filled the masks of one step",
    ["strategy"],
    buckets=(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3),
)
STEP_SECONDS = Histogram(
    "guideway_step_seconds",
    "Seconds by the clock that guideway took of one step of the scheduler, by part; a part that had nothing to do is "
    "left out",
    ["part"],
    buckets=(0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1),
)
LEFT_OUT = Counter(
    "guideway_constraints_left_out",
    "Constraints that a grammar strategy was not asked for, by the rule of the admission guard that they exceed",
    ["strategy", "rule"],
)
CACHE_BYTES = Gauge(
    "guideway_grammar_cache_bytes", "Bytes of compiled grammars kept for reuse", multiprocess_mode="livesum"
)
CLOSED_EARLY = Counter(
    "guideway_closed_early",
    "Outputs for which tokens may have been drawn that were not the model's own, to be complete within a limit",
    ["strategy"],
)
DEADLINES_MISSED = Counter(
    "guideway_deadlines_missed", "Work that took longer than allowed, by plugin and phase", ["plugin", "phase"]
)
HOST_BYTES = Gauge(
    "guideway_grammar_hosts_bytes",
    "Resident bytes of processes for grammar strategies, each with what it shares",
    multiprocess_mode="livesum",
)
LATE_ROWS = Counter(
    "guideway_late_rows", "Sequences that sat a step out because their masks were not ready", ["strategy"]
)
LOST_THREADS = Gauge(
    "guideway_lost_threads", "Threads at work that nobody waits for any more", ["pool"], multiprocess_mode="livesum"
)
QUARANTINES = Counter("guideway_quarantines", "How often a validator was put in quarantine", ["plugin"])
HOSTS_STARTED = Counter("guideway_grammar_hosts_started", "Processes that were started for strategies and modifiers")
HOSTS_ENDED = Counter(
    "guideway_grammar_hosts_ended",
    "Processes for grammar strategies that did not end by themselves: they broke a limit, crashed, or were killed or "
    "stopped from outside",
    ["how"],
)
WORKER_RESTARTS = Counter(
    "guideway_worker_restarts", "Attempts to start lost workers of guideway's own engine again, failed ones included"
)
