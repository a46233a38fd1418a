"""Running a `transformers` causal LM over changing sequences, with guideway's own KV cache.

Only the model's attention is replaced (`AttentionInterface`), so an architecture works if its attention uses that
interface and needs only causal attention, with or without a sliding window.
`guideway_engine.runners.transformers.model_support` checks this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from guideway.api.device import padded_size
from guideway.api.forward import Append, ForwardOutput, ForwardStep, ModelInfo, ModelRunner, Region, RunnerLimits
from guideway.errors import InvalidConfiguration
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (its usual name)
from transformers import PreTrainedModel

from guideway_engine.linear import use_onednn
from guideway_engine.runners.transformers.attention import PackedStep, pack_step
from guideway_engine.runners.transformers.kv_store import KVStore
from guideway_engine.runners.transformers.masks import Masks
from guideway_engine.runners.transformers.model_loader import load_model, model_info
from guideway_engine.runners.transformers.model_support import check_spans, probe_attention

__all__ = ["PackedModel", "TransformersRunner", "context_length"]


class PackedModel:
    """One model, the keys and values of its sequences, and the forward pass of a step.

    Takes over the model, and every other one that shares its configuration object: their attention now requires this
    runner, so their own ``generate`` no longer works. Raises `InvalidConfiguration` for an architecture that it cannot
    run faithfully, and for sizes that do not fit.
    """

    logits_width: int
    """Width of a row of logits, which may exceed the size of the vocabulary."""
    max_context: int | None
    """Maximum number of tokens of the model's context; None if its configuration does not have it."""

    def __init__(self, model: PreTrainedModel, *, num_cells: int, max_length: int) -> None:
        self.max_context = context_length(model)
        if max_length < 1 or max_length > (self.max_context or max_length):
            limit = f"from 1 to the model's context of {self.max_context}" if self.max_context else "at least 1"
            raise InvalidConfiguration(f"max_length must be {limit}, not {max_length}", field="max_length")
        if num_cells < max_length:
            raise InvalidConfiguration(
                f"num_cells must be enough for max_length {max_length}, not {num_cells}", field="num_cells"
            )
        check_spans(model, max_length)
        model.train(False)
        self._model = model
        profile = probe_attention(model)
        use_onednn(model)
        self.logits_width = profile.logits_width
        self._windows = profile.windows(max_length)
        self._group = profile.num_query_heads // profile.kv_shape.num_heads
        self._store = KVStore(profile.kv_shape, num_cells=num_cells, dtype=model.dtype, device=model.device)
        self._masks = Masks(max_length, dtype=model.dtype, device=model.device)

    @torch.inference_mode()
    def forward(self, step: ForwardStep) -> ForwardOutput:
        """Execute the moves of `step` and pass its tokens through the model.

        Prompts, parts of prompts, single tokens and short runs (forced tokens, drafts) may be mixed. The logits are
        float32. All outputs are inference tensors: change them in place only under `torch.inference_mode`. After any
        error or interrupt, the same step can be repeated with the same result.
        """
        self._store.move(step.moves, step.first_move)
        packed = self.pack(step.appends)
        head = cast("torch.nn.Module", self._model.get_output_embeddings())  # type: ignore[no-untyped-call]
        with _inputs_of(head, wanted=step.hidden_states) as inputs:
            output = self._model(
                input_ids=packed.token_ids,
                position_ids=packed.positions,
                use_cache=False,
                logits_to_keep=0 if packed.rows is None else packed.rows,  # 0 means all
                guideway_step=packed,
            )
        return ForwardOutput(output.logits[0].float(), inputs[0][0] if step.hidden_states else None)

    def pack(self, appends: Sequence[Append]) -> PackedStep:
        """Return the packed row of a step."""
        return pack_step(appends, self._store, self._masks, windows=self._windows, group=self._group)


class TransformersRunner(ModelRunner):
    """Runs a model of `transformers`, whole or sharded among workers. It runs on the device if that uses torch tensors;
    otherwise on the CPU, and the logits are then moved to the device."""

    contract = "1.0"
    name = "transformers"

    def load(self, folder: str, dtype: str) -> ModelInfo:
        model = load_model(folder, dtype, self.backend.device if self.backend.arrays == "torch" else "cpu")
        info = model_info(model)
        if self.num_workers > 1:
            from guideway_engine.runners.transformers.tensor_parallel import share

            model = share(model, self.rank, self.num_workers)
        self.model = model
        return info

    def start(self, limits: RunnerLimits) -> None:
        self.packed = PackedModel(self.model, num_cells=limits.num_cells, max_length=limits.max_length)
        self._max_num_rows = limits.max_num_rows

    def dummy_steps(self) -> Iterator[ForwardStep]:
        num_rows = padded_size(1)
        while self.backend.static_shapes and num_rows <= padded_size(self._max_num_rows):
            yield ForwardStep([Append(Region(0, 1), 0, [0], 1)] * num_rows)
            num_rows *= 2

    def forward(self, step: ForwardStep) -> ForwardOutput:
        output = self.run(step)
        return _pad(output) if self.backend.static_shapes else output

    def run(self, step: ForwardStep) -> ForwardOutput:
        """Return the rows of `step`, without padding."""
        return self.packed.forward(step)

    def close(self) -> None:
        if self.num_workers > 1:
            from guideway_engine.runners.transformers.tensor_parallel import leave

            leave()


def context_length(model: PreTrainedModel) -> int | None:
    """Return the maximum number of tokens of `model`'s context; None if its configuration does not have it."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


@torch.inference_mode()
def _pad(output: ForwardOutput) -> ForwardOutput:
    """Return `output` padded with rows of zeros."""
    missing = padded_size(len(output.logits)) - len(output.logits)
    logits, hidden = (
        None if x is None else F.pad(x, (0, 0, 0, missing)) for x in (output.logits, output.hidden_states)
    )
    return ForwardOutput(logits, hidden)


@contextmanager
def _inputs_of(module: torch.nn.Module, *, wanted: bool) -> Iterator[list[Tensor]]:
    """Record the inputs of `module` within the context, if `wanted`. For the output embeddings these are the last
    hidden states after the final norm, only for the rows of logits; the model itself would return every layer's."""
    inputs: list[Tensor] = []
    if not wanted:
        yield inputs
        return
    hook = module.register_forward_pre_hook(lambda _, arguments: inputs.append(cast("Tensor", arguments[0])))
    try:
        yield inputs
    finally:
        hook.remove()
