"""llguidance's matcher under guideway's contract."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from guideway.api import CompiledGrammar, ConformanceError, DeadEnd, LimitExceeded, Matcher
from guideway.api.bitmask import num_words
from guideway.json_schema import MasksAhead, in_a_row, restrict
from llguidance import LLMatcher, LLTokenizer

if TYPE_CHECKING:
    from guideway.api import Vocabulary
    from guideway.api.bitmask import Bitmask
    from guideway.json_schema import JsonCursor, WritingRule

    from guideway_llguidance.tokenizer import Borders


NO_TOKEN = "the grammar allows no token of this vocabulary here"
MAX_MESSAGE = 300
"""Characters of a library message that an error quotes; llguidance appends its parser's state."""
FEW = 2
"""Fewer tokens than this are validated by their masks."""
MANY = 32
"""Validating from the start of an output pays off if its tokens are at most this many times those to validate."""


class LlguidanceCompiled(CompiledGrammar):
    """A parsed grammar; llguidance does the rest lazily, in each matcher.

    Copies of an LLMatcher share its lexer. That makes them cheap (2 us instead of a millisecond) and warm, but the
    lexer grows with everything that any copy reads, and at a limit all copies fail. So this keeps one matcher as a
    template and replaces it when its lexer is full. `parse` returns a new one whose first mask is computed.
    """

    def __init__(
        self,
        parse: Callable[[], LLMatcher],
        tokenizer: LLTokenizer,
        borders: Borders,
        vocabulary: Vocabulary,
        eos_token_id: int,
        nbytes: int,
        rule: WritingRule | None = None,
        *,
        looks_ahead: bool = False,
        validates: bool = False,
    ) -> None:
        self._parse = parse
        self._template = parse()
        self.tokenizer, self.borders = tokenizer, borders
        self._vocabulary = vocabulary
        self.eos_token_id = eos_token_id
        self._nbytes = nbytes
        self.rule = rule
        """The rule for writing JSON, if the output is JSON alone."""
        if rule is not None:
            rule.prepare()
        self.ahead = rule.ahead() if rule is not None and looks_ahead else None
        """Looks ahead if names of properties may run out."""
        self._validates = validates
        self._validator: LLMatcher | None = None
        self._unread = np.zeros(num_words(len(vocabulary)), dtype=np.int32)
        """Gets the masks of `_validator`, which nobody reads."""
        self._lock = threading.Lock()

    def native(self, *, renew: bool = False) -> LLMatcher:
        """Return llguidance's matcher at the start of the grammar; with `renew`, one with a new lexer."""
        with self._lock:  # llguidance raises where two threads use one of its matchers
            if renew:
                self._template = self._parse()
            return self._template.deep_copy()

    def num_valid(self, token_ids: Sequence[int]) -> int | None:
        """Count the first tokens of an output that llguidance calls valid, in a small part of the time that their masks
        take; None if it cannot tell.

        This uses a separate matcher at the start of the grammar, with a lexer of its own. llguidance limits the work of
        a lexer between two masks; a lexer that reaches the limit fails all its matchers, and the next mask reports it.
        """
        with self._lock:
            if not self._validates:
                return None
            if self._validator is None:
                self._validator = self._parse()
            count = self._validator.validate_tokens(list(token_ids))
            self._validator.unsafe_compute_mask_ptr(self._unread.ctypes.data, self._unread.nbytes)
            if self._validator.is_error():  # an output that is too much for it once is so every time
                self._validates, self._validator = False, None
                return None
            return int(count)

    def matcher(self, stop_token_ids: frozenset[int]) -> LlguidanceMatcher:
        return LlguidanceMatcher(self, self.native(), stop_token_ids, self._vocabulary)

    @property
    def nbytes(self) -> int:
        return self._nbytes


class LlguidanceAhead(MasksAhead):
    """The masks after more tokens by a copy of llguidance's matcher."""

    def __init__(self, native: LLMatcher, num_words: int, before: Sequence[int] = ()) -> None:
        super().__init__(before)
        self._native = native
        self._row = np.zeros(num_words, dtype=np.int32)
        self._address = self._row.ctypes.data

    def begin(self) -> None:
        self._copy = self._native.deep_copy()

    def back(self, num_tokens: int) -> bool:
        return not self._copy.is_error() and self._copy.rollback(num_tokens)

    def read(self, token_id: int) -> Bitmask | None:
        self._copy.consume_token(token_id)
        self._copy.unsafe_compute_mask_ptr(self._address, self._row.nbytes)
        if self._copy.is_error():
            self._row[:] = 0
            # it may allow a token after which it allows none itself
            return self._row if is_dead_end(self._copy.get_error()) else None
        return self._row


class LlguidanceMatcher(Matcher):
    """A matcher that keeps the mask of its state. A token is legal if its bit there is set, so `accept` and
    `fill_bitmask` cannot disagree. llguidance never gets a token that it would refuse, which would break it, nor a
    token whose mask it has not computed, where it errs for very large patterns.

    Stop tokens never reach llguidance: they are legal where it says that the output is complete.
    """

    def __init__(
        self, compiled: LlguidanceCompiled, native: LLMatcher, stop_token_ids: frozenset[int], vocabulary: Vocabulary
    ) -> None:
        self._compiled = compiled
        self._native = native
        self._stop_token_ids = stop_token_ids
        self._ends = stop_token_ids | {compiled.eos_token_id}
        self._vocabulary = vocabulary
        self._token_ids: list[int] = []
        self._rule = compiled.rule
        self._places = [] if self._rule is None else [self._rule.start]
        """The places in JSON before the output and after each token, if there is a rule."""
        self._terminated = False
        self._accepting = False
        self._keep_mask_in(np.zeros(num_words(len(vocabulary)), dtype=np.int32))
        self._block: Bitmask | None = None
        """The masks of all matchers that were filled together last, of which this one's is the row `_at`."""
        self._at = 0
        self._mask_is_current = False
        self._names_are_kept = False
        """True if the mask is without the tokens after which no name can follow."""

    def _keep_mask_in(self, words: Bitmask) -> None:
        self._mask = words
        # reading a bit or the address is several times as fast from these as from the array
        self._words = words.data.cast("B").cast("I")
        self._address = words.ctypes.data

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if not self.advance(token_id):
                return count
        return len(token_ids)

    def advance(self, token_id: int) -> bool:
        """Accept one token. Return whether it is allowed."""
        if self._terminated or not self._is_legal(token_id):
            return False
        if token_id in self._stop_token_ids:
            self._terminated = True
        else:
            self._mask_is_current = False
            self._native.consume_token(token_id)
            if self._native.is_error():
                self._start_again()
                self._consume((token_id,))
            if self._rule is not None and (after := self._rule.after(self._places[-1], token_id)) is not None:
                self._places.append(after)
        self._token_ids.append(token_id)
        return True

    def _is_legal(self, token_id: int) -> bool:
        self._update_mask()
        allowed = bool(self._words[token_id >> 5] >> (token_id & 31) & 1)
        if not allowed or self._names_are_kept or self._compiled.ahead is None or token_id in self._stop_token_ids:
            return allowed
        return self._compiled.ahead.leads_on(self._places[-1], token_id, LlguidanceAhead(self._native, self._mask.size))

    def _update_mask(self) -> None:
        if self._mask_is_current:
            return
        self._compute_mask()
        if self._native.is_error() and not is_dead_end(self._native.get_error()):
            self._start_again()
            self._compute_mask()
        if self._native.is_error():
            if not is_dead_end(self._native.get_error()):
                self._check()
            self._mask[:] = 0
        if self._rule is not None and (allowed := self._rule.allowed(self._places[-1])) is not None:
            self._mask &= allowed
        self._accepting = not self._native.is_error() and self._native.is_accepting()
        self._write_stops()
        self._names_are_kept = False
        self._mask_is_current = True

    def _keep_names(self) -> None:
        """Take the tokens after which no name can follow from the mask, for which all of them are looked at."""
        if self._compiled.ahead is not None and not self._names_are_kept:
            self._compiled.ahead.keep(self._places[-1], self._mask, LlguidanceAhead(self._native, self._mask.size))
            self._write_stops()
            self._names_are_kept = True

    def _write_stops(self) -> None:
        # llguidance sets the bits of the tokenizer's own stop token and of a stop token that the grammar names
        words, eos = self._words, self._compiled.eos_token_id
        words[eos >> 5] &= ~(1 << (eos & 31))
        for token_id in self._stop_token_ids:
            bit = 1 << (token_id & 31)
            if self._accepting:
                words[token_id >> 5] |= bit
            else:
                words[token_id >> 5] &= ~bit

    def _compute_mask(self) -> None:
        self._native.unsafe_compute_mask_ptr(self._address, self._mask.nbytes)

    def _consume(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            self._compute_mask()
            self._native.consume_token(token_id)
            self._check()

    def _start_again(self) -> None:
        """Replace the matcher by one with a new lexer in the same state, because llguidance never leaves an error."""
        self._native = self._compiled.native(renew=True)
        self._consume(self._token_ids)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        self._update_mask()
        self._keep_names()
        if not np.bitwise_or.reduce(self._mask):
            raise DeadEnd(NO_TOKEN)
        words = bitmask[row]
        words[: self._mask.size] = self._mask
        words[self._mask.size :] = 0

    def validate(self, token_ids: Sequence[int]) -> int:
        num_before, most = len(token_ids), max(FEW, len(self._token_ids) // MANY)
        if self._terminated or num_before < most or not 0 <= min(token_ids) <= max(token_ids) < len(self._vocabulary):
            return super().validate(token_ids)
        asked, ends = list(token_ids), False
        if not self._ends.isdisjoint(asked):
            num_before = next(i for i, token_id in enumerate(asked) if token_id in self._ends)
            ends = asked[num_before] in self._stop_token_ids
            # the tokenizer's own stop token is valid where the output may end
            asked[num_before:] = [self._compiled.eos_token_id] if ends else []
        found = self._compiled.num_valid([*self._token_ids, *asked])
        if found is None or found < len(self._token_ids):
            return super().validate(token_ids)
        count = found - len(self._token_ids)
        asked = asked[: min(count, num_before)]
        if self._rule is None or (self._compiled.ahead is None and self._rule.takes(self._places[-1], asked)):
            return count
        written = self._after(asked)
        if self._compiled.ahead is None:
            return len(written)
        states = [self._places[-1], *written]
        for i in range(self._compiled.ahead.num_proved(written), len(written)):
            masks = LlguidanceAhead(self._native, self._mask.size, asked[:i])
            if not self._compiled.ahead.leads_on(states[i], asked[i], masks):
                return i
        return count if len(written) == len(asked) else len(written)

    def is_terminated(self) -> bool:
        return self._terminated

    def is_accepting(self) -> bool:
        return not self._terminated and bool(self._native.is_accepting())

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= len(self._token_ids):
            raise ValueError(f"cannot roll back {num_tokens} tokens, only {len(self._token_ids)} were accepted")
        if num_tokens == 0:
            return
        kept = self._token_ids[: len(self._token_ids) - num_tokens]
        num_native = num_tokens - self._terminated
        self._token_ids, self._terminated = kept, False
        if not num_native:
            return
        if self._places:
            del self._places[-num_native:]
        self._mask_is_current = False
        if self._native.is_error():
            self._start_again()
        else:
            self._native.rollback(num_native)
            self._check()

    def fork(self) -> LlguidanceMatcher:
        other = LlguidanceMatcher(self._compiled, self._native.deep_copy(), self._stop_token_ids, self._vocabulary)
        other._token_ids, other._terminated = self._token_ids.copy(), self._terminated
        other._places = self._places.copy()
        return other

    def forced_tokens(self) -> Sequence[int]:
        # without the model's encoder the tokens that the model would write are unknown
        if self._terminated or self._native.is_error() or self._vocabulary.encoder is None:
            return ()
        forced = self._native.compute_ff_bytes()
        self._check()
        if not forced:
            return ()
        # only up to where the following text could change the tokens
        token_ids = tuple(self._compiled.tokenizer.tokenize_partial(forced)[0])
        token_ids = token_ids[: self._compiled.borders.certain(forced, token_ids)]
        return token_ids if self._rule is None else token_ids[: len(self._after(token_ids))]

    def _after(self, token_ids: Sequence[int]) -> list[JsonCursor]:
        """Return the place in JSON after each of these tokens, up to the first that breaks the rule."""
        if self._rule is None:
            return []
        places = self._places[-1:]
        for token_id in token_ids:
            after = self._rule.after(places[-1], token_id)
            if after is None:
                break
            places.append(after)
        return places[1:]

    def _check(self) -> None:
        """Raise llguidance's internal error. llguidance itself continues as if the output were complete: its next masks
        would allow the stop token alone."""
        if not self._native.is_error():
            return
        message = " ".join(self._native.get_error().split("<state>")[0].split())[:MAX_MESSAGE]
        if re.search(r"\btoo\b|limit", message, re.IGNORECASE):
            raise LimitExceeded(f"llguidance gave up on this grammar: {message}", field="constraint")
        raise ConformanceError(f"llguidance failed: {message}")

    @staticmethod
    def fill_together(matchers: Sequence[LlguidanceMatcher], bitmask: Bitmask, rows: Sequence[int]) -> bool:
        """Fill a row for each of these matchers. Return False if one is given twice, or if llguidance reports an error
        for any of them: then they must be filled one by one."""
        if len(set(map(id, matchers))) < len(matchers):
            return False
        block = matchers[0]._block
        places = [(matcher._block is block, matcher._at) for matcher in matchers]
        if block is None or len(block) != len(matchers) or places != [(True, at) for at in range(len(block))]:
            block = np.stack([matcher._mask for matcher in matchers])
            for at, matcher in enumerate(matchers):
                matcher._block, matcher._at = block, at
                matcher._keep_mask_in(block[at])
        size, natives = block.shape[1] * 4, [matcher._native for matcher in matchers]
        for matcher, native in zip(matchers, natives, strict=True):
            matcher._mask_is_current = False
            native.unsafe_compute_mask_ptr(matcher._address, size)
        if any(native.is_error() for native in natives):
            return False
        ruled = [(at, (matcher._rule, matcher._places[-1])) for at, matcher in enumerate(matchers) if matcher._rule]
        if ruled:
            restrict(block, *zip(*ruled, strict=True))
        accepting = [native.is_accepting() for native in natives]
        for matcher, is_accepting in zip(matchers, accepting, strict=True):
            matcher._accepting, matcher._names_are_kept, matcher._mask_is_current = is_accepting, False, True
        first = matchers[0]
        if {matcher._ends for matcher in matchers} == {first._ends}:
            words = block.view(np.uint32)
            for token_id in first._ends:
                words[:, token_id >> 5] &= 0xFFFFFFFF ^ 1 << (token_id & 31)
            may_end = [at for at, is_accepting in enumerate(accepting) if is_accepting]
            for token_id in first._stop_token_ids if may_end else ():
                words[may_end, token_id >> 5] |= 1 << (token_id & 31)
        else:
            for matcher in matchers:
                matcher._write_stops()
        for matcher in matchers:
            matcher._keep_names()
        where = in_a_row(rows)
        bitmask[where, : block.shape[1]] = block
        bitmask[where, block.shape[1] :] = 0
        return True


def is_dead_end(error: str) -> bool:
    """Return whether llguidance's error says that no token can follow. Its `stop_reason` is no help: that is an
    internal error, as in many other cases."""
    return error.startswith("NoExtensionBias")
