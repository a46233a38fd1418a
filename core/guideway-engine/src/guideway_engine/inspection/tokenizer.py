"""Loading of a model's vocabulary from its folder, without its weights, and if possible without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidConfiguration
from guideway.vocabulary import build_vocabulary

__all__ = ["load_vocabulary"]

AS_WRITTEN = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes for which `transformers` uses ``tokenizer.json`` unchanged. Other classes build a different tokenizer from
it."""

OLDER_FILES = ("added_tokens.json", "special_tokens_map.json")
"""Files from which `transformers` may add tokens to ``tokenizer.json``."""

SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LISTS_OF_SPECIAL = ("additional_special_tokens", "extra_special_tokens")


def load_vocabulary(folder: Path) -> Vocabulary:
    """Return the vocabulary that an engine would build for the model in `folder`. Reads only the tokenizer,
    ``config.json`` and ``generation_config.json``; the latter two may be missing. Raises `InvalidConfiguration`."""
    config, generation = _json(folder, "config.json"), _json(folder, "generation_config.json")
    stops = (generation or config).get("eos_token_id")
    stop_ids = [] if stops is None else [stops] if isinstance(stops, int) else list(stops)
    width = config.get("text_config", config).get("vocab_size")
    tokenizer, eos = _load_unchanged(folder)
    if tokenizer is None:  # transformers must build it, which imports torch
        from guideway_engine.runners.transformers.model_loader import load_tokenizer

        tokenizer = load_tokenizer(folder)
    elif eos is not None:
        stop_ids.append(eos)
    try:
        return build_vocabulary(tokenizer, logits_width=width, stop_token_ids=stop_ids)
    except InvalidConfiguration as error:
        if error.field != "stop_token_ids" or stop_ids:
            raise
        raise InvalidConfiguration(
            f"the tokenizer in {str(folder)!r} has no end-of-text token, so no text would end; add "
            '"eos_token" to a tokenizer_config.json beside it',
            field="model",
        ) from error


def _load_unchanged(folder: Path) -> tuple[Any, int | None]:
    """Return the tokenizer in ``tokenizer.json`` and its end-of-text token; None for both if `transformers` would
    change it."""
    config = _json(folder, "tokenizer_config.json")
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InvalidConfiguration(
            f"{str(folder)!r} has no tokenizer.json; give the folder of a model in the format of transformers, with a "
            "fast tokenizer",
            field="model",
        )
    plain = config.get("tokenizer_class", AS_WRITTEN[0]) in AS_WRITTEN and "added_tokens_decoder" not in config
    if not plain or any((folder / name).exists() for name in OLDER_FILES):
        return None, None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise InvalidConfiguration(f"{str(path)!r} cannot be read: {error}", field="model") from error
    special = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    if not set(_special_names(config)) <= special.keys():
        return None, None
    eos = config.get("eos_token")
    return tokenizer, None if eos is None else special[_content(eos)]


def _special_names(config: dict[str, Any]) -> Iterator[str]:
    for key in SPECIAL:
        if config.get(key) is not None:
            yield _content(config[key])
    for key in LISTS_OF_SPECIAL:
        value = config.get(key) or ()
        yield from map(_content, value.values() if isinstance(value, dict) else value)


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _json(folder: Path, name: str) -> dict[str, Any]:
    """Return the object in a file of the folder; empty if there is no file."""
    try:
        found = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidConfiguration(f"{str(folder / name)!r} cannot be read: {error}", field="model") from error
    if not isinstance(found, dict):
        raise InvalidConfiguration(f"{str(folder / name)!r} is no JSON object", field="model")
    return found
