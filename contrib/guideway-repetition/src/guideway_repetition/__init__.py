"""Modifiers against repetition: `Dry` lowers tokens that extend a repeated sequence, `NoRepeatNgram` forbids them."""

from __future__ import annotations

from guideway import api

from guideway_repetition.dry import Dry
from guideway_repetition.hearing import Repetition
from guideway_repetition.ngrams import NoRepeatNgram

__all__ = ["Dry", "NoRepeatNgram", "guideway_logit_modifier"]


@api.hookimpl
def guideway_logit_modifier(name: str) -> type[Repetition]:
    return {cls.name: cls for cls in (Dry, NoRepeatNgram)}[name]
