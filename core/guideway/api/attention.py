"""Attention backends.

Provisional: this contract may still change inside v1. A host that runs whole prompts at once (embedding, reranking,
classification) hands every layer's queries, keys and values to one backend, many sequences at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, TypeAlias

__all__ = ["ATTENTION_CAPABILITIES", "ATTENTION_TOLERANCES", "AttentionBackend", "AttentionLayout"]

Tensor: TypeAlias = Any
"""A torch tensor; the library itself does not import torch."""

AttentionLayout: TypeAlias = Literal["packed", "padded"]
"""The two layouts of the tokens of many sequences in one tensor, see `AttentionBackend`."""

ATTENTION_CAPABILITIES = ("float32", "float16", "bfloat16", "causal", "window", "two_sided_window", "grouped_query")
"""The members that `AttentionBackend.capabilities` may have: three dtypes, causal attention, a window in causal
attention, a window in bidirectional attention, and fewer key heads than query heads."""

ATTENTION_TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Largest error of a result, by dtype, relative to the largest absolute value in `value`. The exact result is the
formula of `AttentionBackend.attend` in float64 on the same inputs."""


class AttentionBackend(ABC):
    """An attention implementation, created without arguments and used by one thread.

    Its `layout` is the layout of its tensors. The last axis but one counts places:

    ``packed``
        One row without padding: `query` is ``[1, heads, total, dim]``, `key` and `value` are
        ``[1, key heads, total, dim]``, where total is ``sum(lengths)``. Sequence i owns ``lengths[i]`` places, after
        the places of sequence i - 1.
    ``padded``
        One row per sequence: `query` is ``[sequences, heads, length, dim]``, `key` and `value` are
        ``[sequences, key heads, length, dim]``, where length is at least ``max(lengths)``. Sequence i owns the first
        ``lengths[i]`` places of its row. The other places hold arbitrary finite numbers; the result there is not
        read and may be anything.

    `heads` is a multiple of the number of key heads; query head h uses key head ``h // (heads // key heads)``. The
    tensors are float32, float16 or bfloat16, all three of one type, on one device, with any strides.
    """

    contract: ClassVar[str]
    """The version of the contract that the class was written for, such as ``"1.0"``. Every plugin's class sets it."""
    name: ClassVar[str]
    layout: ClassVar[AttentionLayout]
    capabilities: ClassVar[frozenset[str]] = frozenset(ATTENTION_CAPABILITIES)
    """The members of `ATTENTION_CAPABILITIES` that the backend supports. `attend` refuses calls that need another, and
    a host refuses such models before the first request."""
    devices: ClassVar[frozenset[str]] = frozenset()
    """The torch device types that the backend runs on, such as ``cuda``; empty: all."""

    @classmethod
    def available(cls) -> str | None:
        """Return None if this backend can run here, else a short reason. Never raises, even if a package is missing,
        and imports no heavy package but torch."""
        return None

    @abstractmethod
    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: tuple[int, ...],
        scale: float,
        causal: bool,
        window: int | None,
    ) -> Tensor:
        """Attend within each sequence, for each of its heads::

            for q in its places:
                seen = [k for k in its places if (not causal or k <= q) and (window is None or abs(q - k) < window)]
                weights = softmax([scale * dot(query[q], key[k]) for k in seen])      # in at least float32
                result[q] = sum(weight * value[k] for weight, k in zip(weights, seen))

        `window` is at least 1 and counts the places that a query sees on one side, including its own, so a query sees
        `window` places if attention is `causal`, else ``2 * window - 1``. A length may be 0, and there may be no
        sequence. The host puts sequences of equal length next to each other, but results must not depend on that: a
        sequence never influences another.

        Returns a tensor of the shape and dtype of `query`, with any strides, that shares no memory with the arguments;
        these are not changed. The error is at most `ATTENTION_TOLERANCES`, as long as float32 holds the sum of the
        values' magnitudes. Finite scores of any size give finite numbers. Raises `UnsupportedCapability` if the call
        needs more than the `capabilities`, for any lengths. Arguments that require gradients are not supported.

        (Vaswani et al., Attention is all you need, NIPS 2017; grouped heads: Ainslie et al., GQA, EMNLP 2023; windows:
        Beltagy et al., Longformer, 2020.)
        """

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Called once, when the host shuts down or fails to start. Exceptions are logged."""
