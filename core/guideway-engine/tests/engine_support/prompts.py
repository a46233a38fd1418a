"""Prompts that the demo model can answer, and the schemas of the answers."""

from __future__ import annotations

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "married"],
    "additionalProperties": False,
}
BOOKING = {
    "type": "object",
    "properties": {
        "guest": {"type": "string", "maxLength": 40},
        "people": {"type": "integer", "minimum": 1, "maximum": 99},
        "room": {"enum": ["single", "double", "suite"]},
    },
    "required": ["guest", "people", "room"],
    "additionalProperties": False,
}
NAMES = ["Peter Young", "Zoë Garcia", "Helsel Brown", "Maria Silva", "Haencor Green", "Liam Morris"]


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def person(i: int) -> list[dict[str, str]]:
    return chat(
        f"Extract name, age, married. Meet {NAMES[i % len(NAMES)]}. Age: {20 + i}. {['Single', 'Married'][i % 2]}."
    )


def booking(i: int) -> list[dict[str, str]]:
    return chat(f"Extract the booking. {NAMES[i % len(NAMES)]} wants to book. For {1 + i} persons. We want the double.")
