"""The host-neutral runtime: admission, compilation, masking, per-sequence states, journal and replay."""

from guideway.runtime.admission import Admission
from guideway.runtime.journal import Journal
from guideway.runtime.plan import RuntimePlan
from guideway.runtime.runtime import CLOSING, Runtime
from guideway.vocabulary import build_vocabulary

__all__ = ["CLOSING", "Admission", "Journal", "Runtime", "RuntimePlan", "build_vocabulary"]
