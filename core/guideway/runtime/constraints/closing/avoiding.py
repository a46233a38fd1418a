"""Matchers that refuse the tokens and texts that a completion avoids, so that a search knows nothing of bans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import Bitmask
from guideway.api.grammar import Matcher
from guideway.errors import UnsupportedCapability
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.closing.lexicon import Lexicon

__all__ = ["Avoided", "Avoiding"]


class Avoided:
    """What the completions of one output avoid."""

    def __init__(self, bans: Bans, lexicon: Lexicon, stop_token_ids: frozenset[int]) -> None:
        self.most_before = max(1, bans.most_before)
        """Most preceding tokens that matter."""
        self._bans = bans
        self._lexicon = lexicon
        self._ends = frozenset(bans.ends(stop_token_ids))

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """``bool[num_tokens]``: True for tokens that are not banned at every position."""
        return self._bans.unbanned(len(self._lexicon.tokens))

    def count_free(self, past: Sequence[int], token_ids: Sequence[int]) -> int:
        """Return how many of `token_ids`, which follow `past`, come before one to avoid: a banned one, or one that
        completes a banned text."""
        tokens, whole = self._lexicon.tokens, [*past[-self.most_before :], *token_ids]
        for at in range(len(whole) - len(token_ids), len(whole)):
            before, token_id = whole[max(0, at - self.most_before) : at], whole[at]
            if token_id not in self._ends:
                written, token = b"".join([tokens[i] for i in before]), tokens[token_id]
                texts = (written[max(0, len(written) - len(stop) + 1) :] + token for stop in self._bans.stop)
                is_stop = any(stop in text for stop, text in zip(self._bans.stop, texts, strict=True))
                if is_stop or self._bans.forbids(before, (token_id,)):
                    return at - len(whole) + len(token_ids)
        return len(token_ids)

    def groups(self, past: Sequence[int]) -> list[list[int]]:
        """Return groups of tokens that bans treat alike after `past`, and may treat unlike others of their shape."""
        found = [[token_id] for word in self._bans.bad_words for token_id in word]
        for stop in self._bans.stop:
            written = self._lexicon.write(past[-len(stop) :])
            found.append(self._lexicon.which("hold", stop))
            for end in range(1, len(stop)):
                found.append(self._lexicon.which("end", stop[:end]))
                if written.endswith(stop[:end]):
                    found.append(self._lexicon.which("begin", stop[end:]))
        return found


class Avoiding(Matcher):
    """The matcher of an output that has accepted `past`, without what completions avoid."""

    def __init__(self, inner: Matcher, avoided: Avoided, past: Sequence[int]) -> None:
        self._inner = inner
        self._avoided = avoided
        self._past = list(past[-avoided.most_before :])

    def _free(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(token_ids[: self._avoided.count_free(self._past, token_ids)])

    def accept(self, token_ids: Sequence[int]) -> int:
        num_taken = self._inner.accept(self._free(token_ids))
        self._past += token_ids[:num_taken]
        return num_taken

    def validate(self, token_ids: Sequence[int]) -> int:
        return self._inner.validate(self._free(token_ids))

    def rollback(self, num_tokens: int) -> None:
        self._inner.rollback(num_tokens)
        del self._past[len(self._past) - num_tokens :]

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        self._inner.fill_bitmask(bitmask, row)
        bits = np.unpackbits(bitmask[row].view(np.uint8), bitorder="little").view(np.bool_)
        bits[: len(self._avoided.allowed)] &= self._avoided.allowed
        bitmask[row] = np.packbits(bits, bitorder="little").view(np.int32)

    def is_terminated(self) -> bool:
        return self._inner.is_terminated()

    def is_accepting(self) -> bool:
        return self._inner.is_accepting()

    def shortest_completion(self, limit: int) -> Sequence[int] | None:
        found = self._inner.shortest_completion(limit)
        if found and self._free(found) != tuple(found):
            raise UnsupportedCapability("it has what is avoided", field="shortest_completion")
        return found
