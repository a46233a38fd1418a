"""The markers of the reasoning: how to find them in an output token by token, and how to spell them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from guideway.api.options import short_repr
from guideway.api.reasoning import ReasoningConfig
from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidConfiguration

__all__ = ["EndMarker", "StartMarker"]


class Marker:
    """A marker: a text, however it is tokenised, or a sequence of tokens. Its parts are bytes or token ids.

    The only state is how many of its parts an output ends with (Knuth, Morris and Pratt, 1977). Raises
    `InvalidConfiguration` for a marker that the vocabulary cannot spell.
    """

    which: ClassVar[str]
    """Prefix of the names of its settings."""
    pieces: frozenset[int]
    """Tokens that may be part of it."""

    def __init__(self, config: ReasoningConfig, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        token_ids, text = tuple(getattr(config, f"{self.which}_token_ids")), getattr(config, f"{self.which}_str")
        if text:
            named = [token_id for token_id, name in vocabulary.special_tokens.items() if name == text]
            token_ids = tuple(named[:1])
        self._is_text = not token_ids
        self._parts: Sequence[int] = text.encode() if self._is_text else token_ids
        self._borders = _borders(self._parts)
        if self._is_text:
            special = next((name for name in vocabulary.special_tokens.values() if name and name in text), None)
            if special is not None:
                raise InvalidConfiguration(
                    f"[reasoning] {self.which}_str {short_repr(text)} mixes the special token {short_repr(special)} "
                    f"with text; set {self.which}_token_ids instead",
                    field=f"reasoning.{self.which}_str",
                )
        else:
            self._check_ids(token_ids, vocabulary)

    def advance(self, matched: int, token_id: int) -> tuple[int, int]:
        """Return how many parts of the marker an output ends with after one more token, given the number before it, and
        how many parts of the token follow the end of the marker."""
        parts = self._tokens[token_id] if self._is_text else (token_id,)
        if matched == 0 and self._parts[0] not in parts:  # the usual case
            return 0, 0
        for i, part in enumerate(parts, 1):
            while matched and self._parts[matched] != part:
                matched = self._borders[matched - 1]
            matched += self._parts[matched] == part
            if matched == len(self._parts):
                return matched, len(parts) - i
        return matched, 0

    def is_whole(self, matched: int) -> bool:
        """Return whether `matched` parts are the whole marker."""
        return matched == len(self._parts)

    def last(self, token_ids: Sequence[int]) -> int:
        """Return the number of tokens up to the end of the last marker; 0 if there is none."""
        if not self._is_text:
            wanted, length = self._parts, len(self._parts)
            ends = range(len(token_ids), length - 1, -1)
            return next((end for end in ends if tuple(token_ids[end - length : end]) == wanted), 0)
        found = matched = 0
        for count, token_id in enumerate(token_ids, 1):
            matched, _ = self.advance(matched, token_id)
            if self.is_whole(matched):
                found, matched = count, 0
        return found

    def _spelling_error(self, after: bytes = b"") -> InvalidConfiguration:
        return InvalidConfiguration(
            f"[reasoning] {self.which}_str {short_repr(bytes(self._parts).decode())} cannot be written with the "
            f"model's tokens{f' after {after!r}' if after else ''}; set {self.which}_token_ids instead",
            field=f"reasoning.{self.which}_str",
        )

    def _check_ids(self, token_ids: Sequence[int], vocabulary: Vocabulary) -> None:
        field = f"reasoning.{self.which}_token_ids"
        for token_id in token_ids:
            if not 0 <= token_id < min(len(vocabulary), vocabulary.logits_width):
                raise InvalidConfiguration(
                    f"[reasoning] {self.which}_token_ids has {short_repr(token_id)}, which is not in the vocabulary "
                    f"(ids 0 to {len(vocabulary) - 1})",
                    field=field,
                )
            if token_id in vocabulary.stop_token_ids:
                raise InvalidConfiguration(
                    f"[reasoning] the marker has the stop token {token_id}, which ends the whole output; set the "
                    "marker between reasoning and answer",
                    field=field,
                )


class StartMarker(Marker):
    """The marker that opens the reasoning at the start of an output."""

    which = "start"

    def __init__(self, config: ReasoningConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.ways = self._find_ways(vocabulary.logits_width)
        """By number of matched parts, the tokens that continue the marker without going past its end."""
        self.pieces = frozenset().union(*self.ways)

    def onward(self, matched: int, token_id: int, *, past: bool) -> int | None:
        """Return how many parts of the marker an output consists of after one more token; None if it is no longer a
        prefix of the marker. With `past`, the token may continue after the marker's end."""
        parts = self._tokens[token_id] if self._is_text else (token_id,)
        rest = self._parts[matched:]
        if parts and tuple(rest[: len(parts)]) == tuple(parts):
            return matched + len(parts)
        return len(self._parts) if past and tuple(parts[: len(rest)]) == tuple(rest) else None

    def num_left(self, matched: int) -> int:
        """Return the most tokens that the rest of the marker may take."""
        return len(self._parts) - matched

    def _find_ways(self, logits_width: int) -> tuple[tuple[int, ...], ...]:
        """Return `ways`, restricted to tokens from which the end of the marker can be reached."""
        if not self._is_text:
            return tuple((token_id,) for token_id in self._parts)
        text, reached = bytes(self._parts), {len(self._parts)}
        pieces = [(i, token) for i, token in enumerate(self._tokens[:logits_width]) if token and token in text]
        ways: list[tuple[int, ...]] = []
        for start in reversed(range(len(text))):
            way = [i for i, piece in pieces if text.startswith(piece, start) and start + len(piece) in reached]
            ways.insert(0, tuple(way))
            if way:
                reached.add(start)
        if not ways[0]:
            raise self._spelling_error()
        return tuple(ways)


class EndMarker(Marker):
    """The marker that ends the reasoning."""

    which = "end"

    def __init__(self, config: ReasoningConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        if self._is_text:
            self.endings = self._spell_endings(vocabulary)
            """By number of matched parts, the tokens that complete the marker without going past its end."""
        else:
            self.endings = tuple(tuple(self._parts[matched:]) for matched in range(len(self._parts)))
        self.pieces = frozenset().union(*self.endings)
        self.longest = max(map(len, self.endings))
        """Most tokens needed to complete the marker from any state."""

    def straddling(self, matched: int) -> list[int]:
        """Return the tokens that contain the end of the marker and more text, for an output that ends with `matched`
        parts."""
        return [token_id for token_id in self._candidates if self.advance(matched, token_id)[1]]

    def ends(self, token_ids: Sequence[int]) -> bool:
        """Return whether these tokens end with the marker, ignoring white space."""
        last = len(token_ids)
        while last and (token := self._tokens[token_ids[last - 1]]) and not token.strip():
            last -= 1
        if not self._is_text:
            return tuple(token_ids[max(0, last - len(self._parts)) : last]) == self._parts
        text = b""
        for token_id in reversed(token_ids[:last]):
            token = self._tokens[token_id]
            if not token or len(text.rstrip()) >= len(self._parts):  # a special token separates texts
                break
            text = token + text
        return text.rstrip().endswith(bytes(self._parts).rstrip())

    @cached_property
    def _candidates(self) -> list[int]:
        """Tokens that could contain the end of the marker and more text."""
        last = bytes(self._parts[-1:]) if self._is_text else None
        return [] if last is None else [i for i, token in enumerate(self._tokens) if last in token[:-1]]

    def _spell_endings(self, vocabulary: Vocabulary) -> tuple[tuple[int, ...], ...]:
        """Return `endings`: the tokens of the whole marker, which the model knows, or of its rest if that takes
        fewer."""
        endings = []
        for matched in range(len(self._parts)):
            spellings = [vocabulary.encode(bytes(self._parts[start:])) for start in dict.fromkeys((0, matched))]
            ending = [tuple(ids) for ids in spellings if ids and self._is_ending(matched, ids)]
            if not ending:
                raise self._spelling_error(bytes(self._parts[:matched]))
            endings.append(min(ending, key=len))
        return tuple(endings)

    def _is_ending(self, matched: int, token_ids: Sequence[int]) -> bool:
        """Return whether the marker ends exactly where these tokens do."""
        for i, token_id in enumerate(token_ids, 1):
            matched, beyond = self.advance(matched, token_id)
            if self.is_whole(matched):
                return i == len(token_ids) and beyond == 0
        return False


def _borders(parts: Sequence[int]) -> list[int]:
    """Return the failure function of Knuth, Morris and Pratt: for each prefix the length of its longest proper
    border."""
    borders, length = [0] * len(parts), 0
    for i in range(1, len(parts)):
        while length and parts[i] != parts[length]:
            length = borders[length - 1]
        length += parts[i] == parts[length]
        borders[i] = length
    return borders
