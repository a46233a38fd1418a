"""The requests that are not over: what of each is known from its admission to the end of its last sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock

from guideway.api.types import Request
from guideway.errors import InvalidRequest
from guideway.runtime.bans import Bans
from guideway.runtime.compiler import Compiled

__all__ = ["OpenRequests"]


@dataclass(slots=True)
class OpenRequest:
    """A request of which a sequence has not ended, or not started."""

    num_sequences: int
    """The number of its sequences that have not ended, those that have not started included."""
    compilation: Future[Compiled] | None
    room: int
    """The number of tokens that each of its sequences may have."""
    bans: Bans | None
    """The bans that the masks of its sequences are to have beside its constraint."""


class OpenRequests:
    """The open requests, iterated by id. May be used from any thread."""

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
    ) -> None:
        """Add a request, and the prompts of the companions of each of its sequences. Raises `InvalidRequest` if one
        with its id was added meanwhile, and cancels the compilation then."""
        with self._lock:
            try:
                self.check_new(request)
            except InvalidRequest:
                if compilation is not None:
                    compilation.cancel()
                raise
            room = self.room_beside(request, companions)
            self._all[request.request_id] = OpenRequest(request.params.num_sequences, compilation, room, bans)

    def expect_another(self, request: Request) -> None:
        """Count one more sequence of an open request."""
        with self._lock:
            self._all[request.request_id].num_sequences += 1

    def sequence_ended(self, request: Request) -> None:
        """Count one sequence fewer. With the last one the request is over, and what compiles for it is canceled."""
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
        """Return how many tokens a sequence of a request may have, open or not."""
        known = self._all.get(request.request_id)
        return self.room_beside(request) if known is None else known.room

    def bans(self, request: Request) -> Bans | None:
        """Return the bans that the masks of a request's sequences are to have."""
        known = self._all.get(request.request_id)
        return None if known is None else known.bans

    def room_beside(self, request: Request, others: Sequence[Sequence[int]] = ()) -> int:
        """Return how many tokens a sequence may have beside companions with prompts of their own."""
        left = self._max_model_len - max(map(len, [request.prompt_token_ids, *others]))
        return left if request.params.max_tokens is None else min(left, request.params.max_tokens)
