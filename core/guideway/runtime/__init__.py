"""The host-neutral runtime: admission, compilation, masking, per-sequence states, journal and replay."""

from guideway.constraints.journal import Journal
from guideway.constraints.runtime import Admission, Runtime
from guideway.constraints.vocabulary import build_vocabulary

__all__ = ["Admission", "Journal", "Runtime", "build_vocabulary"]
