"""The settings of an operator for a model that thinks before it answers: how its reasoning ends."""

from __future__ import annotations

from dataclasses import dataclass

from guideway.api.options import check_fields, known_fields_only, short_repr
from guideway.errors import InvalidConfiguration

__all__ = ["ReasoningConfig"]


@known_fields_only
@dataclass(frozen=True, kw_only=True)
class ReasoningConfig:
    """The ``[reasoning]`` part of a configuration: the marker after which an answer, and its constraint, begins. Raises
    `InvalidConfiguration`."""

    end_str: str = ""
    """The text that ends the reasoning, such as ``</think>``."""
    end_token_ids: tuple[int, ...] = ()
    """The token ids that end the reasoning, in place of `end_str`."""

    def __post_init__(self) -> None:
        check_fields(self, table="reasoning")
        object.__setattr__(self, "end_token_ids", tuple(self.end_token_ids))
        if self.end_str and self.end_token_ids:
            raise InvalidConfiguration(
                "[reasoning] has both end_str and end_token_ids; keep one", field="reasoning.end_token_ids"
            )
        if self.end_str and not _is_seen(self.end_str):
            raise InvalidConfiguration(
                "[reasoning] end_str must be visible text without lone surrogates, such as '</think>', not "
                f"{short_repr(self.end_str)}",
                field="reasoning.end_str",
            )

    @property
    def has_marker(self) -> bool:
        """True if there is one; if not, it is not known how reasoning ends."""
        return bool(self.end_str or self.end_token_ids)


def _is_seen(text: str) -> bool:
    try:
        return bool(text.encode().strip())
    except UnicodeEncodeError:
        return False
