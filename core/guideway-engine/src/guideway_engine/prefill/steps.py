"""The step builder: joins requests into one ragged row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from guideway.api.workflow import Prepared, StepBuilder

from guideway_engine.prefill.forward import Ragged

__all__ = ["RaggedSteps"]


class RaggedSteps(StepBuilder):
    """Concatenates the token ids of requests, with the length of each."""

    def build(self, work: Sequence[Prepared]) -> Ragged:
        types = [request.token_types for request in work if request.token_types is not None]
        return Ragged(
            token_ids=np.concatenate([request.token_ids for request in work]),
            lengths=np.array([request.num_tokens for request in work], dtype=np.int32),
            token_types=np.concatenate(types) if types else None,
        )
