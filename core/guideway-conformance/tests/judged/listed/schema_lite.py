"""Mistakes in `judged.plugins.schema_lite`: JSON schemas by derivatives."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "js-bool-is-a-number",
        "schema_lite.SchemaLite",
        "isinstance(value, int | float) and not isinstance(value, bool)",
        "isinstance(value, int | float)",
        (
            "docs/contracts/grammar.md: 'No instance that breaks a keyword of the schema is accepted "
            "where supports leaves nothing unenforced'; '... and 1 and 0 in the place of true and false'"
        ),
        first="grammar.enforced_keywords_are_enforced",
    ),
    Mutant(
        "js-algebra-shared-by-spacings",
        "schema_lite.SchemaLite",
        "algebra = Algebra(self.options, constraint.spacing)",
        'algebra = self.__dict__.setdefault("algebra", Algebra(self.options, constraint.spacing))',
        (
            "docs/contracts/grammar.md: 'Between two JSON tokens stands the white space that the "
            "constraint asks for, ... whichever was asked for before'"
        ),
        first="grammar.white_space_is_what_was_asked_for",
    ),
    Mutant(
        "js-default-written-into-schema",
        "schema_lite.SchemaLite",
        'int(schema.get("minItems", 0))',
        'int(schema.setdefault("minItems", 0))',
        (
            "docs/contracts/grammar.md: 'No verb changes the constraint, nor what is in it, nor what its "
            "text is parsed to'; api/types.py parsed: 'It is shared: whoever needs another one copies it.'"
        ),
        first="grammar.constraints_are_not_changed",
    ),
    Mutant(
        "js-nbytes-forgets-evictions",
        "schema_lite.SchemaLite",
        "self.held -= 150 + self.rows.pop(next(iter(self.rows))).nbytes",
        "self.rows.pop(next(iter(self.rows)))",
        (
            "api/grammar.py CompiledGrammar.nbytes: 'Memory this grammar holds, in bytes, as near as it "
            "can be told; bounds the host's cache'"
        ),
        now="grammar.nbytes_stops_growing",
        reason=(
            "That nbytes is too little was looked for, and not that it goes on growing; now one output "
            "comes again and again."
        ),
    ),
    Mutant(
        "js-surrogates-are-two-characters",
        "schema_lite.SchemaLite",
        "self.all(byte((48, 57), (65, 67), (69, 70), (97, 99), (101, 102)), *[hex_digit] * 3)",
        "self.all(*[hex_digit] * 4)",
        (
            "docs/contracts/grammar.md: 'An invalid text is refused however it is written, where supports "
            "leaves nothing unenforced: with ... surrogate pairs'"
        ),
        first="grammar.texts_are_judged_by_what_they_mean",
    ),
    Mutant(
        "js-parts-not-named",
        "schema_lite.SchemaLite",
        "        found |= keywords(part)",
        "        keywords(part)",
        (
            "docs/contracts/grammar.md: 'Each keyword of a part of a schema is named as those of the "
            "schema itself are, enforced or unenforced, wherever the part stands'"
        ),
        first="grammar.supports_names_every_keyword",
    ),
)
