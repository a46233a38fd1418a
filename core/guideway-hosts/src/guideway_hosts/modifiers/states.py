"""The view that the serving process has of the states in a host, and of what was compiled there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from guideway.api.steps import Outcome
from guideway.api.types import SequenceInfo
from guideway.errors import GuidewayError

from guideway_hosts.modifiers.messages import Birth, Given, Recipe, Step

__all__ = ["HostedCompiled", "HostedState"]

_NUMBERS = itertools.count()
"""The numbers of states and compiled values, in all hosts of this process."""


class Home(Protocol):
    """The home where they live: `guideway_hosts.modifiers.home.Home`."""

    def tell(self, what: str, number: int, host: int) -> None: ...


class HostedCompiled:
    """A value of `LogitModifier.compile` in a host, and what to make it from again."""

    def __init__(self, home: Home, request: bytes, grammar: Given | None) -> None:
        self.recipe = Recipe(next(_NUMBERS), request, grammar)
        self.born_in = -1
        """The number of the host that has it."""
        self._home = home

    def __del__(self) -> None:
        self._home.tell("unload", self.recipe.number, self.born_in)


class HostedState:
    """A state in a host, and what to make it from again."""

    def __init__(
        self,
        home: Home,
        request: bytes,
        sequence: SequenceInfo,
        compiled: HostedCompiled | None,
        steps: list[Step],
        forks: tuple[int, ...],
    ) -> None:
        self.number = next(_NUMBERS)
        self.request = request
        self.sequence = sequence
        self.compiled = compiled
        self.steps = steps
        """The steps it accepted."""
        self.forks = forks
        self.born_in = -1
        """The number of the host that has it."""
        self.plugin = ""
        self.unenforced: Sequence[str] | GuidewayError = ()
        self.answered: tuple[tuple[int, ...], Outcome | BaseException] | None = None
        """The results of tokens that were announced, until they are accepted."""
        self._home = home

    def birth(self) -> Birth:
        recipe = None if self.compiled is None else self.compiled.recipe
        return Birth(self.request, self.sequence, recipe, tuple(self.steps), self.forks)

    def take(self, step: Step, came: Outcome | BaseException) -> None:
        """It was told of final tokens, and this came of it."""
        self.steps.append(step)
        self.answered = step[0], came

    def take_back(self) -> None:
        """Take back what was announced and did not become final: the state is made anew without."""
        if self.answered is not None:
            self.answered = None
            self.steps.pop()
            self._home.tell("release", self.number, self.born_in)
            self._home.tell("forget", self.number, self.born_in)
            self.born_in = -1

    def __del__(self) -> None:
        self._home.tell("forget", self.number, self.born_in)
