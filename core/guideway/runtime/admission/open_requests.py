"""Requests between their admission and the end of their last sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Literal, TypeAlias

from guideway.api.types import Request
from guideway.errors import InvalidRequest
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.compiler import Compiled
from guideway.runtime.modifiers.opening import Opening

__all__ = ["OpenRequests", "ShortBudget"]

ShortBudget: TypeAlias = Literal["refuse", "cut"]
"""What becomes of a request whose limit is below the shortest output that a search finds."""


@dataclass(slots=True)
class OpenRequest:
    """A request with sequences that have not ended or not started."""

    num_sequences: int
    """Sequences that have not ended, including those not started."""
    compilation: Future[Compiled] | None
    room: int
    """Most tokens of each sequence."""
    bans: Bans | None
    """Bans to apply to the masks of its sequences."""
    opening: Opening | None
    """What the outputs of its sequences must begin with."""


class OpenRequests:
    """The open requests, iterated by id. Thread-safe."""

    def __init__(self, max_model_len: int) -> None:
        self._max_model_len = max_model_len
        self._all: dict[str, OpenRequest] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._all))

    def check_new(self, request: Request) -> None:
        """Raise `InvalidRequest` if a request with this id is open."""
        if request.request_id in self._all:
            raise InvalidRequest(
                f"a request with the id {request.request_id!r} is already running; use another id", field="request_id"
            )

    def open(
        self,
        request: Request,
        compilation: Future[Compiled] | None,
        companions: Sequence[Sequence[int]],
        bans: Bans | None,
        opening: Opening | None,
    ) -> None:
        """Add a request, with the prompts of the companions of each of its sequences. If its id was added concurrently,
        cancel the compilation and raise `InvalidRequest`."""
        with self._lock:
            try:
                self.check_new(request)
            except InvalidRequest:
                if compilation is not None:
                    compilation.cancel()
                raise
            room = self.room_with(request, companions)
            num_sequences = request.params.num_sequences
            self._all[request.request_id] = OpenRequest(num_sequences, compilation, room, bans, opening)

    def expect_another(self, request: Request) -> None:
        """Count one more sequence of an open request."""
        with self._lock:
            self._all[request.request_id].num_sequences += 1

    def end_sequence(self, request: Request) -> None:
        """Count one sequence fewer. The last one closes the request and cancels its compilation."""
        with self._lock:
            known = self._all.get(request.request_id)
            if known is None:
                return
            known.num_sequences -= 1
            if known.num_sequences > 0:
                return
            del self._all[request.request_id]
        if known.compilation is not None:
            known.compilation.cancel()

    def room(self, request: Request) -> int:
        """Return the most tokens that a sequence of a request may have, open or not."""
        known = self._all.get(request.request_id)
        return self.room_with(request) if known is None else known.room

    def bans(self, request: Request) -> Bans | None:
        """Return the bans to apply to the masks of a request's sequences."""
        known = self._all.get(request.request_id)
        return None if known is None else known.bans

    def opening(self, request: Request) -> Opening | None:
        """Return what the outputs of a request's sequences must begin with."""
        known = self._all.get(request.request_id)
        return None if known is None else known.opening

    def room_with(self, request: Request, others: Sequence[Sequence[int]] = ()) -> int:
        """Return the most tokens that a sequence may have if it shares the context length with companions."""
        left = self._max_model_len - max(map(len, [request.prompt_token_ids, *others]))
        return left if request.params.max_tokens is None else min(left, request.params.max_tokens)
