"""Streaming of text: only whole characters, and nothing that a stop string removes."""

from __future__ import annotations

from guideway_engine.scheduling.text_stream import TextStream
from hypothesis import given
from hypothesis import strategies as st

texts = st.text(alphabet="ab\n<|é日😀", max_size=30)
stops = st.lists(st.text(alphabet="ab\n<|é日", min_size=1, max_size=4), max_size=3)


def streamed(pieces: list[bytes], stop: list[str]) -> tuple[list[str], str | None]:
    """Return the text of each piece, and the stop string that ended it."""
    stream = TextStream()
    shown = []
    for data in pieces:
        piece = stream.extended(data, stop)
        shown.append(piece.text)
        stream = piece.stream
        if piece.stop is not None:
            return shown, piece.stop
    return [*shown, stream.end()], None


@given(texts, stops, st.randoms(use_true_random=False))
def test_however_text_is_cut_into_pieces_it_ends_at_the_first_stop_string(text: str, stop: list[str], rng) -> None:
    data = text.encode()
    pieces, start = [], 0
    while start < len(data):
        end = min(len(data), start + rng.randint(1, 5))
        pieces.append(data[start:end])
        start = end
    shown, by = streamed(pieces, stop)
    assert "�" not in "".join(shown)
    # the first piece that completes any stop string decides; among these, the string that begins first
    expected, expected_stop = text, None
    for i in range(len(pieces)):
        so_far = b"".join(pieces[: i + 1]).decode(errors="ignore")
        found = [(so_far.find(s), -len(s), s) for s in stop if s in so_far]
        if found:
            place, _, expected_stop = min(found)
            expected = so_far[:place]
            break
    assert ("".join(shown), by) == (expected, expected_stop)


@given(texts, stops)
def test_nothing_is_withheld_for_longer_than_it_must_be(text: str, stop: list[str]) -> None:
    stream = TextStream()
    shown = ""
    for character in text:
        piece = stream.extended(character.encode(), stop)
        shown, stream = shown + piece.text, piece.stream
        if piece.stop is not None:
            return
        longest = max((n for s in stop for n in range(len(s)) if (shown + stream.held).endswith(s[:n])), default=0)
        assert len(stream.held) == longest
        assert stream.undecoded == b""


def test_half_a_character_waits_for_the_other_half() -> None:
    first = TextStream().extended("é".encode()[:1], [])
    assert (first.text, first.stream.end()) == ("", "�")
    assert first.stream.extended("é".encode()[1:], []).text == "é"


def test_bytes_that_are_no_character_are_shown_as_such() -> None:
    assert TextStream().extended(b"a\xffb", []).text == "a�b"


def test_a_stop_string_that_is_not_looked_for_yet_is_text() -> None:
    piece = TextStream().extended(b"a END b EN", ["END"], look=False)
    assert (piece.text, piece.stop, piece.stream.held) == ("a END b ", None, "EN")
    assert piece.stream.extended(b"D!", ["END"]).stop == "END"
