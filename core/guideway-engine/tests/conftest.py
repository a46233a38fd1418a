"""Limits torch to one thread: on tiny models a second one only waits, and slows down everything else on the machine.
Engines have small KV caches.
"""

import torch

from tests.support.engines import small_caches

__all__ = ["small_caches"]

torch.set_num_threads(1)
