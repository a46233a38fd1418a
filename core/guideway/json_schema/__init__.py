"""JSON Schema for grammar strategies: what a schema says, before it is compiled.

`guideway.json_schema.cases` has schemas with instances they allow and do not; `guideway.json_schema.prober` finds out
with them what an engine enforces.
"""

from __future__ import annotations

from guideway.json_schema.schema import (
    KEYWORDS,
    Schema,
    check_schema,
    combine,
    keywords,
    misspelt_keywords,
    pattern_details,
    resolve,
    subschemas,
)

__all__ = [
    "KEYWORDS",
    "Schema",
    "check_schema",
    "combine",
    "keywords",
    "misspelt_keywords",
    "pattern_details",
    "resolve",
    "subschemas",
]
