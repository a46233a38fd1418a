"""Checks of logit modifiers, their transforms and samplers."""
