"""Detection of a lost device."""

from __future__ import annotations

import sys

__all__ = ["device_is_lost"]


def device_is_lost() -> bool:
    """Return whether CUDA has destroyed this process's context, as after an out-of-bounds index in a kernel. Every
    later call of any thread then fails, and only a new process can use the device again."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:  # an AcceleratorError; a RuntimeError in older versions
        return True
    return False
