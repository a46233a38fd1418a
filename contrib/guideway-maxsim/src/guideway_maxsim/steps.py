"""Steps built from pairs, and the encoder on the worker that scores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from guideway.api import Prepared, StepBuilder, WorkflowRunner
from transformers import AutoModel
from transformers.utils import logging

__all__ = ["Encoder", "PaddedSteps", "Step"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """The texts of some pairs. A text is contained once, however many pairs have it."""

    texts: list[Array]
    pairs: list[tuple[int, int]]
    """Indices of query and document in `texts`."""


class PaddedSteps(StepBuilder):
    """Builds steps with texts sorted by length, so that little of a batch is padding."""

    def build(self, work: Sequence[Prepared]) -> Step:
        found: dict[bytes, Array] = {}
        named = []
        for request in work:
            assert request.token_types is not None
            both = [request.token_ids[request.token_types == which] for which in (0, 1)]
            found.update({text.tobytes(): text for text in both})
            named.append([text.tobytes() for text in both])
        places = {name: place for place, name in enumerate(sorted(found, key=len))}
        return Step([found[name] for name in places], [(places[query], places[document]) for query, document in named])


class Encoder(WorkflowRunner):
    """Computes the sum, over a query's tokens, of the largest cosine with a token of the document."""

    batch_size = 16

    def load(self) -> None:
        dtype = getattr(torch, "float32" if self.context.dtype == "auto" else self.context.dtype)
        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the engine reports that it loads
        try:
            self._model = AutoModel.from_pretrained(
                self.context.model.path, local_files_only=True, trust_remote_code=False, dtype=dtype
            )
        finally:
            if shown:  # keep them for other models loaded in this process
                logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        self._model.to(self.context.device)
        self._model.train(False)

    @torch.inference_mode()
    def execute(self, step: Step) -> Array:
        vectors: list[torch.Tensor] = []
        for begin in range(0, len(step.texts), self.batch_size):
            vectors += self._encode(step.texts[begin : begin + self.batch_size])
        scores = [(vectors[query] @ vectors[document].T).amax(1).sum() for query, document in step.pairs]
        return torch.stack(scores).float().cpu().numpy()

    def _encode(self, texts: list[Array]) -> list[torch.Tensor]:
        lengths = [len(text) for text in texts]
        ids = torch.zeros(len(texts), max(lengths), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.from_numpy(text)
            mask[row, : len(text)] = 1
        hidden = self._model(
            input_ids=ids.to(self.context.device), attention_mask=mask.to(self.context.device)
        ).last_hidden_state
        unit = torch.nn.functional.normalize(hidden, dim=-1)
        return [row[:length] for row, length in zip(unit, lengths, strict=True)]
