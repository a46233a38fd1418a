"""One thread: on tiny models a second one only waits for the first, and for whatever else runs on the machine."""

import torch

torch.set_num_threads(1)
