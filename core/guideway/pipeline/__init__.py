"""The worker's part of a step: apply transforms to logits, stage by stage, and draw tokens."""

from guideway.pipeline.pipeline import Pipeline
from guideway.pipeline.verification import accepted_tokens

__all__ = ["Pipeline", "accepted_tokens"]
