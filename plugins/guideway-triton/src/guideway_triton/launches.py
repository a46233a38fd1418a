"""Starts the kernels on tensors of one device, without allocations or waits on the host.

A value that changes from step to step (number of rows or entries, purpose) never makes Triton compile again; values
that depend on the model (width, layout, dtype) do so once each. All launches may be captured in a CUDA graph.
"""

from __future__ import annotations

import contextlib
import threading

import torch
import triton  # type: ignore[import-untyped]
from guideway.api import Draw
from torch import Tensor

from guideway_triton import kernels

__all__ = ["INTERPRETED", "choose", "forbid", "forbid_lists", "uniform", "warp"]

INTERPRETED = not isinstance(kernels.forbid, triton.runtime.JITFunction)
"""True if the kernels run in Triton's interpreter, on the CPU: TRITON_INTERPRET was set when they were imported."""

_INTERPRETER = threading.Lock()

FORBID_BLOCK = 2048
LIST_BLOCK = 1024
CHOOSE_BLOCK = 1024
EXACT = {"enable_fp_fusion": False}
"""Options of every launch: each operation is rounded as in IEEE 754 and the contract."""


def forbid(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    """Compute `DeviceBackend.apply_bitmask` in place: store -inf where a bit is 0. Logits are read only where some of
    32 neighbors are refused and some are not."""
    width = logits.shape[1]
    if not rows.numel() or not width:
        return
    bitmask, num_blocks = _unit_stride(bitmask), _blocks(width, FORBID_BLOCK)
    with _on(logits):
        kernels.forbid[(len(rows) * num_blocks,)](
            logits, *logits.stride(), width, bitmask, bitmask.stride(0), bitmask.shape[1], rows.contiguous(),
            num_blocks, block=FORBID_BLOCK, **EXACT,
        )  # fmt: skip


def forbid_lists(logits: Tensor, offsets: Tensor, token_ids: Tensor, allow: Tensor, rows: Tensor) -> None:
    """Compute `DeviceBackend.apply_token_lists` in place, from the parts of `TokenLists`; `allow` are integers."""
    width = logits.shape[1]
    if not rows.numel() or not width:
        return
    num_blocks = _blocks(width, LIST_BLOCK)
    with _on(logits):
        kernels.forbid_lists[(len(rows) * num_blocks,)](
            logits, *logits.stride(), width, offsets, token_ids, allow, rows, num_blocks, block=LIST_BLOCK, **EXACT
        )


def warp(logits: Tensor, bitmask: Tensor, rows: Tensor, factors: Tensor) -> Tensor:
    """Compute `DeviceBackend.warp_masked` without additions, in place if `logits` are float32."""
    num_rows, width = logits.shape
    out = logits if logits.dtype == torch.float32 else torch.empty_like(logits, dtype=torch.float32)
    if not num_rows or not width:
        return out
    bitmask, num_blocks = _unit_stride(bitmask), _blocks(width, CHOOSE_BLOCK)
    with _on(logits):
        kernels.warp[(num_rows * num_blocks,)](
            logits, *logits.stride(), out, *out.stride(), width, bitmask, bitmask.stride(0), bitmask.shape[1],
            rows.contiguous(), len(rows), factors.contiguous(), num_blocks, block=CHOOSE_BLOCK, **EXACT,
        )  # fmt: skip
    return out


def uniform(seeds: Tensor, sequences: Tensor, positions: Tensor, purpose: int, width: int) -> Tensor:
    """Compute `ArrayOps.uniform`."""
    out = torch.empty(len(seeds), width, dtype=torch.float32, device=seeds.device)
    if out.numel():
        num_blocks = _blocks(width, CHOOSE_BLOCK)
        with _on(out):
            kernels.uniform[(len(seeds) * num_blocks,)](
                out, width, seeds.contiguous(), sequences.contiguous(), positions.contiguous(), _to_signed(purpose),
                num_blocks, block=CHOOSE_BLOCK, **EXACT,
            )  # fmt: skip
    return out


def choose(logits: Tensor, bitmask: Tensor, rows: Tensor, num_tokens: int, draw: Draw | None) -> tuple[Tensor, Tensor]:
    """Compute `DeviceBackend.masked_sample`, or `DeviceBackend.masked_argmax` without a `draw`.

    One kernel reduces in blocks, a second one their results in rows. Both compare integers that combine value and
    column, so the order of the comparisons does not matter.
    """
    num_rows, num_blocks = len(logits), _blocks(num_tokens, CHOOSE_BLOCK)
    chosen = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    largest = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    if not num_rows:
        return chosen, largest
    bitmask = _unit_stride(bitmask)
    bests = torch.empty(num_rows, num_blocks, dtype=torch.int64, device=logits.device)
    scores = bests if draw is None else torch.empty_like(bests)
    drawn = (None,) * 4 if draw is None else (draw.temperatures, draw.seeds, draw.sequences, draw.positions)
    with _on(logits):
        kernels.choose_in_blocks[(num_rows * num_blocks,)](
            logits, *logits.stride(), bitmask, bitmask.stride(0), bitmask.shape[1], rows.contiguous(), len(rows),
            num_tokens, *(array if array is None else array.contiguous() for array in drawn),
            0 if draw is None else _to_signed(draw.purpose), scores, bests, num_blocks,
            draws=draw is not None, block=CHOOSE_BLOCK, **EXACT,
        )  # fmt: skip
        kernels.choose_in_rows[(num_rows,)](
            scores, bests, num_blocks, chosen, largest, block=triton.next_power_of_2(num_blocks), **EXACT
        )
    return chosen, largest


def _blocks(width: int, block: int) -> int:
    return -(-width // block)


def _to_signed(word: int) -> int:
    """Return the int32 with the same bits, so that Triton gives every purpose the same type."""
    return (word + 2**31) % 2**32 - 2**31


def _unit_stride(bitmask: Tensor) -> Tensor:
    return bitmask if bitmask.stride(1) == 1 else bitmask.contiguous()


def _on(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Return a context for launches on the tensor's device, which need not be the current one. Triton's interpreter
    replaces parts of Triton's language while it runs, so there only one thread at a time can use it."""
    return _INTERPRETER if INTERPRETED else torch.cuda.device(tensor.device)
