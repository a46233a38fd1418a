"""Rules about JSON that grammars do not enforce, tracked over their masks: unique items of arrays."""

from __future__ import annotations

from guideway.json_schema.tracking.cursor import TrackedText
from guideway.json_schema.tracking.places import UniqueArrays
from guideway.json_schema.tracking.tracked import TrackedSchema, tracked
from guideway.json_schema.tracking.tracker import Tracker

__all__ = ["TrackedSchema", "TrackedText", "Tracker", "UniqueArrays", "tracked"]
