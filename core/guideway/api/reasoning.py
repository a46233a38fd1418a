"""Configuration of a model that reasons before it answers: how its reasoning begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

from guideway.api.options import check_fields, known_fields_only, short_repr
from guideway.errors import InvalidConfiguration

__all__ = ["ReasoningConfig"]


@known_fields_only
@dataclass(frozen=True, kw_only=True)
class ReasoningConfig:
    """The ``[reasoning]`` table of a configuration: the markers before and after the reasoning. The answer, to which
    the constraint applies, begins after the end marker. Raises `InvalidConfiguration`."""

    start_str: str = ""
    """The text that opens the reasoning, such as ``<think>``. If it is set, an output has reasoning if its prompt has
    opened the reasoning or if the output begins with this text. If not, an output has reasoning unless its prompt ends
    with the end marker."""
    start_token_ids: tuple[int, ...] = ()
    """The token ids that open the reasoning, in place of `start_str`."""
    end_str: str = ""
    """The text that ends the reasoning, such as ``</think>``."""
    end_token_ids: tuple[int, ...] = ()
    """The token ids that end the reasoning, in place of `end_str`."""
    excluded_token_ids: tuple[int, ...] = ()
    """Token ids that are never drawn in the reasoning, if the request has a constraint."""

    def __post_init__(self) -> None:
        check_fields(self, table="reasoning")
        object.__setattr__(self, "excluded_token_ids", tuple(self.excluded_token_ids))
        for which, example in (("start", "<think>"), ("end", "</think>")):
            field = f"reasoning.{which}_token_ids"
            text, token_ids = getattr(self, f"{which}_str"), tuple(getattr(self, f"{which}_token_ids"))
            object.__setattr__(self, f"{which}_token_ids", token_ids)
            if text and token_ids:
                raise InvalidConfiguration(
                    f"[reasoning] has both {which}_str and {which}_token_ids; keep one", field=field
                )
            if text and not _is_seen(text):
                raise InvalidConfiguration(
                    f"[reasoning] {which}_str must be visible text without lone surrogates, such as "
                    f"{example!r}, not {short_repr(text)}",
                    field=f"reasoning.{which}_str",
                )
        if not self.has_marker and (self.has_opening or self.excluded_token_ids):
            raise InvalidConfiguration(
                "[reasoning] says how reasoning begins, but not how it ends; set end_str, such as '</think>'",
                field="reasoning.end_str",
            )

    @property
    def has_marker(self) -> bool:
        """True if the end of the reasoning is configured."""
        return bool(self.end_str or self.end_token_ids)

    @property
    def has_opening(self) -> bool:
        """True if the start of the reasoning is configured."""
        return bool(self.start_str or self.start_token_ids)


def _is_seen(text: str) -> bool:
    try:
        return bool(text.encode().strip())
    except UnicodeEncodeError:
        return False
