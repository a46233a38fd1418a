"""Rules about JSON that grammars do not enforce, tracked over their masks: unique items of arrays, and the required
properties of objects whose properties come in any order."""

from __future__ import annotations

from guideway.json_schema.tracking.alternatives import NotTracked
from guideway.json_schema.tracking.ordering import has_order, in_any_order
from guideway.json_schema.tracking.places import UniqueArrays
from guideway.json_schema.tracking.requiring import RequiredTracker
from guideway.json_schema.tracking.tracked import TrackedSchema, followed, tracked
from guideway.json_schema.tracking.tracker import Tracker

__all__ = ["NotTracked", "RequiredTracker", "TrackedSchema", "Tracker", "UniqueArrays", "followed", "has_order"]
__all__ += ["in_any_order", "tracked"]
