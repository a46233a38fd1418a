"""guideway as a guest in vLLM: its strategies, modifiers, validators and worker mixins, per request, without a fork.

vLLM calls `register` once in each of its processes. Nothing acts unless the server is started with
``--additional-config '{"guideway": {...}}'``.
"""

from __future__ import annotations

import atexit
import gc
from importlib.util import find_spec

__all__ = ["register"]


def register() -> None:
    """Install guideway in vLLM; the entry point of the group ``vllm.general_plugins``. Raises `PluginUnavailable`,
    naming vLLM's version and the missing parts, if this vLLM lacks a method that the guest wraps."""
    from guideway_vllm.seams import install

    # vLLM freezes the heap of its server: what is frozen at the end is not collected, and Triton reports it as leaked
    atexit.register(gc.unfreeze)
    if find_spec("guideway_hosts") is not None:  # without it everything runs in vLLM's processes
        from guideway_hosts import share_fork_server

        share_fork_server()
    install()
