"""Limits torch to one thread: on tiny models a second one only waits, and slows down everything else on the machine."""

import torch

torch.set_num_threads(1)
