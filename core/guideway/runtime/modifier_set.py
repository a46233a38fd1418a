"""The modifiers a host runs, and the life of the states they keep for each sequence."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from guideway.api.modifier import LogitModifier
from guideway.api.steps import GRAMMAR_MASK, Fault, Need, Stage
from guideway.api.types import Companion, Request, SamplingParams, SequenceInfo
from guideway.errors import (
    InvalidConfiguration,
    InvalidRequest,
    PluginError,
    UnsupportedCapability,
    contain,
    text_of,
)
from guideway.runtime.grammar_mask import GrammarMask, GrammarState
from guideway.runtime.journal import Journal

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
        names = [modifier.name for modifier in (mask, *modifiers)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            reserved = "; that name is reserved for the grammar mask" if twice == GRAMMAR_MASK else ""
            raise InvalidConfiguration(
                f"two logit modifiers are named {twice!r}, and payloads go by name{reserved}", field="modifiers"
            )
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
            acting = [m for m, state in zip(self.all, states, strict=True) if state is not None]
            self.check_owners(acting, request.params)
            sequence = ActiveSequence(journal, states, self._listeners(states))
            if (state := self.grammar_state(sequence)) is not None:
                state.waits_for = journal.constraint_start
            self._replay(sequence)
        except BaseException:
            self.release(states)
            raise
        if (state := self.grammar_state(sequence)) is not None:
            unenforced |= dict.fromkeys(state.candidate.unenforced)
        sequence.unenforced = unenforced | journal.overruled
        return sequence

    def companions(self, request: Request) -> list[tuple[str, Companion]]:
        """What each modifier wants to run beside each sequence of the request, with the modifier's name."""
        found: list[tuple[str, Companion]] = []
        for modifier in self.all:
            if Need.COMPANIONS in modifier.needs:
                companions = self._call(modifier, "companions", request)
                if not isinstance(companions, list | tuple):
                    plugin = self.id(modifier, None)
                    raise PluginError(
                        f"{plugin} failed in companions: it must return a list, not {type(companions).__name__}",
                        plugin=plugin,
                    )
                found += [(modifier.name, companion) for companion in companions]
        return found

    def fork(self, parent: ActiveSequence, info: SequenceInfo) -> ActiveSequence:
        """A second sequence with `parent`'s past. Raises `UnsupportedCapability` if a modifier cannot fork."""
        states = list(parent.states)
        forked: list[tuple[LogitModifier[Any], Any]] = []
        try:
            for i, (modifier, state) in enumerate(zip(self.all, parent.states, strict=True)):
                if state is not None and not modifier.derived:
                    forked.append((modifier, None))  # so that a fork that raises is released too
                    states[i] = self._call(modifier, "fork", state)
                    forked[-1] = (modifier, states[i])
        except BaseException:
            self._release(forked)
            raise
        child = ActiveSequence(parent.journal.fork(info), states, self._listeners(states))
        child.companions = parent.companions
        child.unenforced = dict(parent.unenforced)
        return child

    def release(self, states: list[Any]) -> None:
        """Release the states of the first ``len(states)`` modifiers; one that raises keeps no other from it."""
        self._release(list(zip(self.all, states, strict=False)))

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

    def _release(self, states: list[tuple[LogitModifier[Any], Any]]) -> None:
        for modifier, state in states:
            try:
                modifier.release(state)
            except BaseException as error:
                contain(error)
                log.warning("%s failed in release; its sequence had ended", self.id(modifier, state), exc_info=True)

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

    def check_owners(self, modifiers: Sequence[LogitModifier[Any]], params: SamplingParams) -> None:
        """Refuse a request for which two of `modifiers` own the draw, or one does that greedy decoding would ignore."""
        owners = [modifier.name for modifier in modifiers if modifier.stage is Stage.SAMPLE]
        if len(owners) > 1:
            raise InvalidRequest(
                f"modifiers {' and '.join(repr(name) for name in owners)} both want to own the draw; choose one",
                field="modifiers",
            )
        if owners and params.temperature == 0:
            raise InvalidRequest(
                f"modifier {owners[0]!r} owns the draw, but at temperature 0 (greedy) nothing is drawn; set a "
                "temperature above 0, such as 1.0",
                field="temperature",
            )

    def _call(self, modifier: LogitModifier[Any], phase: str, *args: Any) -> Any:
        """``modifier.phase(*args)``; all it may not raise becomes a `PluginError` that names modifier and phase."""
        try:
            return getattr(modifier, phase)(*args)
        except (InvalidRequest, PluginError):
            raise
        except InvalidConfiguration as error:  # how `parse_options` speaks of a request's options
            raise InvalidRequest(str(error), field=f"modifiers.{modifier.name}") from error
        except BaseException as error:
            contain(error)
            plugin = self.id(modifier, args[0])
            raise PluginError(f"{plugin} failed in {phase}: {text_of(error)}", plugin=plugin) from error
