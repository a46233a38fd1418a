"""Small vocabularies for tests."""

from __future__ import annotations

from guideway.api import Vocabulary


def tiny(*, width: int = 0) -> Vocabulary:
    """Return printable ASCII, a few longer tokens across JSON's borders, and a stop token (the last id)."""
    tokens = [bytes([byte]) for byte in range(32, 127)]
    tokens += [b'{"', b'":', b'","', b'"}', b'": ', b"true", b"false", b"null", b"ab", b"abc", b"10", b"\n", b""]
    stop = len(tokens) - 1
    return Vocabulary(
        tokens=tokens, stop_token_ids=frozenset({stop}), special_tokens={stop: "</s>"}, logits_width=width
    )


def encode(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """Encode by the greedy longest match, for vocabularies without an encoder."""
    by_length = sorted(range(len(vocabulary)), key=lambda i: -len(vocabulary.tokens[i]))
    ids = []
    while text:
        token_id = next(i for i in by_length if vocabulary.tokens[i] and text.startswith(vocabulary.tokens[i]))
        ids.append(token_id)
        text = text[len(vocabulary.tokens[token_id]) :]
    return ids
