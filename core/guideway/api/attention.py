"""Attention backends: the one place of a model's layer where the tokens of a sequence look at each other.

Provisional: this contract may still change inside v1. A host that runs whole prompts at once (embedding, reranking,
classification) hands every layer's queries, keys and values to one backend, many sequences at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, TypeAlias

__all__ = ["ATTENTION_CAPABILITIES", "ATTENTION_TOLERANCES", "AttentionBackend", "AttentionLayout"]

Tensor: TypeAlias = Any
"""A tensor of torch, which the library itself does not import."""

AttentionLayout: TypeAlias = Literal["packed", "padded"]
"""The two ways in which the tokens of many sequences stand in one tensor, see `AttentionBackend`."""

ATTENTION_CAPABILITIES = ("float32", "float16", "bfloat16", "causal", "window", "two_sided_window", "grouped_query")
"""The members that `AttentionBackend.capabilities` may have: three types of numbers, attention to earlier tokens only,
a window in causal attention, a window in attention to both sides, and fewer key heads than query heads."""

ATTENTION_TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""The most that a result may differ from the exact one, by type, as a part of the largest absolute value in `value`.
Exact is the formula of `AttentionBackend.attend` in float64 on the same inputs."""


class AttentionBackend(ABC):
    """An attention implementation, made without arguments and used by one thread.

    Its `layout` says how it wants its tensors, whose first axis but one counts places:

    ``packed``
        One row without padding: `query` is ``[1, heads, total, dim]``, `key` and `value` are
        ``[1, key heads, total, dim]``, where total is ``sum(lengths)``. Sequence i owns the ``lengths[i]`` places after
        those of the sequences before it.
    ``padded``
        A row for each sequence: `query` is ``[sequences, heads, length, dim]``, `key` and `value` are
        ``[sequences, key heads, length, dim]``, where length is at least ``max(lengths)``. Sequence i owns the first
        ``lengths[i]`` places of its row. The others hold finite numbers that mean nothing; what is returned there is
        not read, and may be anything.

    `heads` is a multiple of the number of key heads; query head h uses key head ``h // (heads // key heads)``. The
    tensors are float32, float16 or bfloat16, all three of one type, on one device, with any strides.
    """

    contract: ClassVar[str]
    """The version of the contract it was written for, such as ``"1.0"``: each plugin's class states its own."""
    name: ClassVar[str]
    layout: ClassVar[AttentionLayout]
    capabilities: ClassVar[frozenset[str]] = frozenset(ATTENTION_CAPABILITIES)
    """The members of `ATTENTION_CAPABILITIES` that it has. What needs another is refused by `attend`, and by a host
    before the first request."""
    devices: ClassVar[frozenset[str]] = frozenset()
    """The types of torch devices that it runs on, such as ``cuda``; empty: all."""

    @classmethod
    def available(cls) -> str | None:
        """None if this backend can run here, else the reason why not, in a few words. Never raises, not even where a
        package is not installed, and imports nothing heavy but torch."""
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

        So `window` counts the places that a query sees on one side, its own included: all `window` of them where
        attention is `causal`, else ``2 * window - 1``. It is at least 1. A length may be 0, and there may be no
        sequence. The host puts sequences of one length side by side, which no result may depend on: no place of another
        sequence has any influence.

        Returns a tensor of the shape and type of `query`, with any strides and no memory of the arguments, which stay
        as they are; `ATTENTION_TOLERANCES` says how exact, as long as float32 holds the sum of the values' magnitudes.
        Scores of any finite size give finite numbers. Raises `UnsupportedCapability` for what is not among its
        `capabilities`, whatever the lengths. Nothing is promised for arguments that require gradients.

        (Vaswani et al., Attention is all you need, NIPS 2017; grouped heads: Ainslie et al., GQA, EMNLP 2023; windows:
        Beltagy et al., Longformer, 2020.)
        """

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Once, when its host shuts down or fails to start. What it raises is logged."""
