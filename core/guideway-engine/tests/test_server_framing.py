"""Parsing of HTTP: the same requests however their bytes arrive, and none that h11 would read differently."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import h11
from guideway_engine.server.framing import StrictConnection
from hypothesis import given
from hypothesis import strategies as st

CHUNKED = b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
STREAMS = [
    CHUNKED + b"5\r\n0\r\nab\r\n3;a=b\r\nxyz\r\n0\r\n\r\n" + b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
    b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nabcde" + CHUNKED + b"1\r\n0\r\n00;x\r\n\r\n",
    b"GET /a HTTP/1.0\r\n\r\n",
]
PIECES = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b":",
    b"0",
    b";",
    b",",
    b"\0",
    b"\xff",
    b"0\r\n",
    b"\r\n\r\n",
    b"x: y\r\n",
]
PIECES += [b"content-length: 3\r\n", b"transfer-encoding: chunked\r\n"]

edits = st.lists(st.tuples(st.integers(0, 150), st.sampled_from([*PIECES, b""]), st.integers(0, 3)), max_size=3)
cuts = st.lists(st.integers(0, 150), max_size=8)


def read(connection: Any, data: bytes, at: list[int]) -> tuple[list[Any], bool]:
    """Return the requests in `data`, which arrives in parts that end at these positions, and whether one was
    refused."""
    found: list[Any] = []
    edges = sorted({0, len(data), *(cut for cut in at if cut < len(data))})
    for start, end in pairwise(edges):
        connection.receive_data(data[start:end])
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError:
                return found, True
            if isinstance(event, h11.Request):
                found.append([event.method, event.target, list(event.headers), b""])
            elif isinstance(event, h11.Data):
                found[-1][3] += event.data
            elif isinstance(event, h11.EndOfMessage):
                found[-1].append("complete")
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is h11.MUST_CLOSE:
                    return found, False
                connection.start_next_cycle()
            else:
                break
    return found, False


@given(st.sampled_from(STREAMS), edits, cuts)
def test_requests_are_the_same_however_they_arrive(data: bytes, changes: Any, at: list[int]) -> None:
    for place, piece, cut in changes:
        data = data[:place] + piece + data[place + cut :]
    found, is_refused = read(StrictConnection(), data, at)
    at_once, is_refused_at_once = read(StrictConnection(), data, [])
    assert (is_refused, [one for one in found if one[-1] == "complete"]) == (
        is_refused_at_once,
        [one for one in at_once if one[-1] == "complete"],
    )
    if not changes:
        assert not is_refused
    plain, _ = read(h11.Connection(h11.SERVER), data, [])
    for ours, theirs in zip(found, plain, strict=False):  # ours may end earlier, if it refuses or waits
        assert ours[:3] == theirs[:3] and theirs[3].startswith(ours[3])
    assert len(found) <= len(plain)


@given(cuts)
def test_no_way_to_arrive_makes_a_request_malformed(at: list[int]) -> None:
    for stream in STREAMS:
        assert read(StrictConnection(), stream, at) == read(h11.Connection(h11.SERVER), stream, [])
