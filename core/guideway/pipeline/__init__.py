"""The worker's side of a step: transforms applied to logits, stage by stage, and the draw."""

from guideway.pipeline.pipeline import Pipeline
from guideway.pipeline.verification import accepted_tokens

__all__ = ["Pipeline", "accepted_tokens"]
