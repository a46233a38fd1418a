"""The record of a sequence, its replay, and the slots of a step."""
