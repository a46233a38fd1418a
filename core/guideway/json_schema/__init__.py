"""JSON Schema for grammar strategies: analyze schemas before they are compiled.

Schemas are checked and walked without recursion and in time linear in their size, so malicious ones are not expensive.
`JsonSchema.parsed` and `JsonSchema.cached` avoid repeated work in strategies.

`guideway.json_schema.prober` measures the keywords that an engine enforces, with valid and invalid instances of many
schemas; `guideway.json_schema.support` stores the results by version of the engine.
"""

from __future__ import annotations

from guideway.json_schema.assertions import (
    KEYWORDS,
    TYPES,
    assertions,
    combine,
    keywords,
    root_keywords,
)
from guideway.json_schema.checking import check_schema, misspelt_keywords
from guideway.json_schema.cursor import JsonCursor
from guideway.json_schema.emptiness import Emptiness, check_satisfiable
from guideway.json_schema.formats import FORMATS, has_format, with_patterns
from guideway.json_schema.mistakes import check_regex
from guideway.json_schema.naming import MasksAhead, NamesAhead, hides_names, names_may_run_out
from guideway.json_schema.patterns import pattern_details
from guideway.json_schema.places import locate, places, prefix_errors
from guideway.json_schema.tags import schemas_in, tag_nodes, tag_schemas
from guideway.json_schema.walking import IN_PLACE_APPLICATORS, Chain, Pointer, Schema, resolve, subschemas
from guideway.json_schema.writing import WritingRule, in_a_row, restrict

__all__ = [
    "FORMATS",
    "IN_PLACE_APPLICATORS",
    "KEYWORDS",
    "TYPES",
    "Chain",
    "Emptiness",
    "JsonCursor",
    "MasksAhead",
    "NamesAhead",
    "Pointer",
    "Schema",
    "WritingRule",
    "assertions",
    "check_regex",
    "check_satisfiable",
    "check_schema",
    "combine",
    "has_format",
    "hides_names",
    "in_a_row",
    "keywords",
    "locate",
    "misspelt_keywords",
    "names_may_run_out",
    "pattern_details",
    "places",
    "prefix_errors",
    "resolve",
    "restrict",
    "root_keywords",
    "schemas_in",
    "subschemas",
    "tag_nodes",
    "tag_schemas",
    "with_patterns",
]
