"""The stacks of threads that run native code of plugins."""

from __future__ import annotations

__all__ = ["STACK_BYTES"]

STACK_BYTES = 64 << 20
"""Stack size of a thread, virtual memory only. Native compilers recurse over chains of `$ref` and rules; with the usual
size of 8 MiB, chains of about 2,500 links overflow the stack and crash the process."""
