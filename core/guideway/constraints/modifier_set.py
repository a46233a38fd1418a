"""The modifiers a host runs, and the life of the states they keep for each sequence."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from guideway.api.errors import GuidewayError, InvalidRequest, PluginError, UnsupportedCapability
from guideway.api.modifier import LogitModifier
from guideway.api.steps import Fault, Need, Stage
from guideway.api.types import Companion, Request, SequenceInfo
from guideway.constraints.journal import Journal
from guideway.constraints.masking import GrammarMask, GrammarState

__all__ = ["ActiveSequence", "ModifierSet"]

log = logging.getLogger(__name__)


class ActiveSequence:
    """What the runtime knows of one running sequence."""

    __slots__ = ("companions", "fault", "journal", "listeners", "states", "unenforced")

    def __init__(self, journal: Journal, states: list[Any], listeners: list[tuple[LogitModifier[Any], Any]]) -> None:
        self.journal = journal
        self.states = states
        """Aligned with the modifiers; None where a modifier leaves the sequence alone."""
        self.listeners = listeners
        """The modifiers that hear its tokens, each with its state."""
        self.companions: Sequence[str] = ()
        """For each companion sequence, the modifier that asked for it."""
        self.unenforced: dict[str, None] = {}
        """What was asked for and is not enforced; a dict for its order."""
        self.fault: Fault | None = None


class ModifierSet:
    """The grammar mask and the configured modifiers, in the order in which the pipeline applies them."""

    def __init__(self, mask: GrammarMask, modifiers: Sequence[LogitModifier[Any]], offers: frozenset[Need]) -> None:
        stages = list(Stage)
        self.all: tuple[LogitModifier[Any], ...] = tuple(
            sorted([mask, *modifiers], key=lambda m: (stages.index(m.stage), m.order, m.name))
        )
        self.mask = mask
        self._mask_index = self.all.index(mask)
        self._offers = offers

    def begin(self, journal: Journal) -> ActiveSequence:
        """States for a sequence from its start, brought up to date by its journal. Releases what it started if
        anything fails. Raises `InvalidRequest` or `PluginError`."""
        request, info = journal.request, journal.sequence
        states: list[Any] = []
        unenforced: dict[str, None] = {}
        try:
            for modifier in self.all:
                states.append(None)  # so that a start that raises is released too
                states[-1] = state = self._call(modifier, "start", request, info)
                if state is None:
                    if modifier.name in request.params.modifiers:
                        unenforced[f"modifier.{modifier.name}"] = None
                    continue
                self.check_needs(modifier)
            self._check_owner(states)
            sequence = ActiveSequence(journal, states, self._listeners(states))
            self._replay(sequence)
        except BaseException:
            self.release(states)
            raise
        if (state := self.grammar_state(sequence)) is not None:
            unenforced |= dict.fromkeys(state.candidate.unenforced)
        sequence.unenforced = unenforced
        return sequence

    def companions(self, request: Request) -> list[tuple[str, Companion]]:
        """What each modifier wants to run beside each sequence of the request, with the modifier's name."""
        return [
            (modifier.name, companion)
            for modifier in self.all
            if Need.COMPANIONS in modifier.needs
            for companion in self._call(modifier, "companions", request)
        ]

    def fork(self, parent: ActiveSequence, info: SequenceInfo) -> ActiveSequence:
        """A second sequence with `parent`'s past. Raises `UnsupportedCapability` if a modifier cannot fork."""
        states: list[Any] = []
        try:
            for modifier, state in zip(self.all, parent.states, strict=True):
                shared = state is None or modifier.derived
                states.append(state if shared else self._call(modifier, "fork", state))
        except BaseException:
            self.release(states)
            raise
        child = ActiveSequence(parent.journal.fork(info), states, self._listeners(states))
        child.companions = parent.companions
        child.unenforced = dict(parent.unenforced)
        return child

    def release(self, states: list[Any]) -> None:
        """Release each modifier's state; one that raises keeps no other from being released."""
        for modifier, state in zip(self.all, states, strict=False):
            try:
                modifier.release(state)
            except Exception:
                log.warning("%s failed in release; its sequence had ended", self.id(modifier, state), exc_info=True)

    def check_needs(self, modifier: LogitModifier[Any]) -> None:
        """Raise `UnsupportedCapability` if the host cannot give `modifier` what it declares to need."""
        if missing := sorted(need.value for need in modifier.needs - self._offers):
            raise UnsupportedCapability(
                f"modifier {modifier.name!r} needs {', '.join(missing)}, which this host does not offer",
                field="modifiers",
            )

    def grammar_state(self, sequence: ActiveSequence) -> GrammarState | None:
        """The state of the sequence's matcher, if it has a constraint."""
        state: GrammarState | None = sequence.states[self._mask_index]
        return state

    def with_states(self, sequence: ActiveSequence) -> list[tuple[LogitModifier[Any], Any]]:
        """The modifiers that act on the sequence, each with its state."""
        return [(m, state) for m, state in zip(self.all, sequence.states, strict=True) if state is not None]

    def id(self, modifier: LogitModifier[Any], state: Any) -> str:
        """``kind.name`` of the plugin behind a modifier's state: for the mask, the strategy."""
        if isinstance(state, GrammarState):
            return f"grammar.{state.candidate.name}"
        return f"modifier.{modifier.name}"

    def _replay(self, sequence: ActiveSequence) -> None:
        for token_ids, feedback in sequence.journal.steps():
            for modifier, state in sequence.listeners:
                outcome = self._call(modifier, "accept", state, token_ids, (feedback or {}).get(modifier.name))
                if outcome.action == "fail":
                    plugin = self.id(modifier, state)
                    raise PluginError(
                        f"{plugin} refused in replay what it had accepted before: {outcome.message}", plugin=plugin
                    )

    def _listeners(self, states: list[Any]) -> list[tuple[LogitModifier[Any], Any]]:
        pairs = zip(self.all, states, strict=True)
        return [(m, state) for m, state in pairs if state is not None and not m.derived]

    def _check_owner(self, states: list[Any]) -> None:
        pairs = zip(self.all, states, strict=True)
        owners = [m.name for m, state in pairs if state is not None and m.stage is Stage.SAMPLE]
        if len(owners) > 1:
            raise InvalidRequest(
                f"modifiers {' and '.join(repr(name) for name in owners)} both want to own the draw; choose one",
                field="modifiers",
            )

    def _call(self, modifier: LogitModifier[Any], phase: str, *args: Any) -> Any:
        """``modifier.phase(*args)``; what is not guideway's own error becomes a `PluginError` that names both."""
        try:
            return getattr(modifier, phase)(*args)
        except GuidewayError:
            raise
        except Exception as error:
            plugin = self.id(modifier, args[0])
            raise PluginError(f"{plugin} failed in {phase}: {type(error).__name__}: {error}", plugin=plugin) from error
