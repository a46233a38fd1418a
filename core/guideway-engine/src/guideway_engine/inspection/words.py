"""Formatting of tokens, bytes and numbers for people."""

from __future__ import annotations

from itertools import groupby

from guideway.api.vocabulary import Vocabulary
from guideway.errors import printable

__all__ = ["bar", "begins", "byte_count", "costs", "counted", "percentage", "share", "token_text", "visible"]

MANY_CHARACTERS = 40

BAR = 8
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")

# no ␍: many fonts lack it
MARKS = str.maketrans({" ": "␣", "\n": "↵", "\r": "\\r", "\t": "⇥"})


def token_text(vocabulary: Vocabulary, token_id: int) -> str:
    """Return a token's text; white space as ␣ ↵ ⇥ ``\\r``, invalid UTF-8 as ``\\xc3``, a special token by its name."""
    token = vocabulary.tokens[token_id]
    return visible(token) if token else printable(vocabulary.special_tokens.get(token_id, f"<{token_id}>"))


def visible(text: bytes) -> str:
    """Return text with visible white space; invalid UTF-8 and characters that control a terminal are escaped."""
    return printable(text.decode(errors="backslashreplace").translate(MARKS))


def begins(first_bytes: bytes) -> str:
    """List the characters that texts may begin with, as ranges: ``␣ - 0-9``. Non-ASCII characters are not
    distinguished."""
    runs: list[list[int]] = []
    for byte in first_bytes:
        if byte >= 0x80:
            break
        if runs and runs[-1][-1] == byte - 1 and chr(byte - 1).isprintable() == chr(byte).isprintable():
            runs[-1].append(byte)
        else:
            runs.append([byte])
    parts = []
    for run in runs:
        # show most of ASCII as one range, but split a part of it into digits and letters
        for part in [run] if len(run) > MANY_CHARACTERS else _kinds(run):
            ends = [visible(bytes((byte,))) for byte in (part[0], part[-1])]
            parts += [f"{ends[0]}-{ends[1]}"] if len(part) > 2 else ends[: len(part)]
    return " ".join([*parts, "non-ASCII"] if first_bytes and first_bytes[-1] >= 0x80 else parts)


def counted(count: int, what: str) -> str:
    """Return ``1 token``, ``2 tokens``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def byte_count(count: int) -> str:
    """Return ``512 bytes``, ``99 kB``, ``1.2 MB``."""
    return f"{count} bytes" if count < 1000 else f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def share(count: int, total: int) -> str:
    """Return a percentage that shows 0 % and 100 % only for exactly none and all."""
    return percentage(count / total)


def percentage(part: float) -> str:
    """Return a number from 0 to 1 as a percentage, as `share` does."""
    percent = 100 * part
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.1f} %" if percent < 99.95 or part == 1 else ">99.9 %"


def bar(part: float) -> str:
    """Draw a number from 0 to 1 as a bar of up to `BAR` characters, in eighths of a character."""
    whole, eighths = divmod(round(part * BAR * 8), 8)
    return "█" * whole + EIGHTHS[eighths]


def costs(seconds: float | None) -> str:
    """Return a time: ``12 µs``, ``3.4 ms``, ``1.2 s``."""
    if seconds is None:
        return ""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _kinds(run: list[int]) -> list[list[int]]:
    """Split consecutive characters into digits, capitals, small letters and others."""

    def kind(byte: int) -> int:
        character = chr(byte)
        return 1 if character.isdigit() else 2 if character.isupper() else 3 if character.islower() else 0

    return [list(part) for _, part in groupby(run, kind)]
