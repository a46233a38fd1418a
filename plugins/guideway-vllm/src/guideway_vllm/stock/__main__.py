"""Probes the installed versions of the libraries behind vLLM's backends, and writes the keywords they enforce."""

from __future__ import annotations

from guideway_vllm.stock.guidance.backend import Guidance
from guideway_vllm.stock.probe import support_table
from guideway_vllm.stock.xgrammar.backend import Xgrammar

if __name__ == "__main__":
    for strategy in (Guidance, Xgrammar):
        support_table(strategy).write()
