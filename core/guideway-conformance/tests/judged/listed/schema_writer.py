"""Mistakes in `judged.plugins.schema_writer`: JSON schemas as expressions over bytes."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "writer-surrogate-bytes",
        "schema_writer.Schemas",
        "self.byte(0x80, 0x9F)",
        "self.byte(0x80, 0xBF)",
        "C: A text that is no output of the language is refused / G: A JSON string is Unicode text.",
        reason="Bytes that are no character were tried in regexes alone; now in strings and names of JSON too.",
        now="grammar.other_texts_are_refused",
    ),
    Mutant(
        "writer-blanks-twice",
        "schema_writer.Schemas",
        ('        first, later = self.text("}"), self.seq(self.blanks, self.text("}"))\n'),
        ('        first = later = self.seq(self.blanks, self.text("}"))\n'),
        (
            "api/types.py, Whitespace: ``bounded``: at most `MAX_WHITESPACE` characters in a row. C: "
            "Between two JSON tokens stands the white space that the constraint asks for, and never more."
        ),
        reason=(
            "Blanks were tried between the tokens of full objects and arrays; now in empty ones too, "
            "up to twice as many."
        ),
        now="grammar.white_space_is_what_was_asked_for",
    ),
    Mutant(
        "writer-true-is-a-number",
        "schema_writer.Schemas",
        ('    if isinstance(value, bool):\n        return kind == "boolean"\n'),
        ('    if isinstance(value, bool) and kind == "boolean":\n        return True\n'),
        (
            "C: An invalid text is refused however it is written ...: and 1 and 0 in the place of true "
            "and false. / enforced keywords are enforced."
        ),
        first="grammar.enforced_keywords_are_enforced",
    ),
    Mutant(
        "writer-items-bounds-crossed",
        "schema_writer.Schemas",
        (
            '        least, most = bounds(schema, "minItems", "maxItems")\n'
            "        if most is not None and least > most:\n"
            "            return self.never\n"
        ),
        ('        least, most = bounds(schema, "minItems", "maxItems")\n'),
        (
            "C: No instance that breaks a keyword of the schema is accepted where supports leaves "
            "nothing unenforced. / A grammar that matches no text at all is not compiled."
        ),
        reason=("Bounds that cross were tried of strings alone, and only that they compile or not; now of every pair."),
        now="grammar.bounds_that_cross_leave_nothing",
    ),
    Mutant(
        "writer-bytes-lose-spacing",
        "schema_writer.Schemas",
        ("        return self.compile(JsonSchema(schema, whitespace=spacing))\n"),
        ("        return self.compile(JsonSchema(schema))\n"),
        ("C: from_bytes of another strategy for an equal vocabulary turns what to_bytes wrote into an equal grammar."),
        first="grammar.constraints_that_live_together_are_told_apart",
    ),
    Mutant(
        "writer-keywords-of-items-unnamed",
        "schema_writer.Schemas",
        '*([schema["items"]] if "items" in schema else [])',
        "",
        (
            "C: Each keyword of a part of a schema is named as those of the schema itself are, "
            "enforced or unenforced, wherever the part stands: below items, properties and all other keywords."
        ),
        first="grammar.keywords_of_parts_are_named",
    ),
    Mutant(
        "writer-wider-words-kept",
        "schema_writer.Schemas",
        ('        bitmask[row] = np.packbits(padded, bitorder="little").view("<i4")\n'),
        (
            "        bitmask[row, : (len(legal) + 31) // 32] = np.packbits(padded, "
            'bitorder="little").view("<i4")[: (len(legal) + 31) // 32]\n'
        ),
        ("C: Bits at and past the vocabulary's length are zero, also in the words that only wider logits have."),
        first="grammar.fill_touches_only_its_row",
    ),
    Mutant(
        "writer-cache-without-spacing",
        "schema_writer.Schemas",
        ("        writer = Writer(constraint.spacing)\n        start = writer.schema(constraint.parsed)\n"),
        (
            "        import weakref\n"
            "\n"
            "        kept = self.__dict__.setdefault('kept', weakref.WeakValueDictionary())\n"
            "        writer = kept.setdefault(constraint.source(), Writer(constraint.spacing))\n"
            "        start = writer.schema(constraint.parsed)\n"
        ),
        (
            "C: Constraints that differ in one place (white space of their JSON, ...) are what they "
            "are alone when compiled before, after and beside each other, all of them alive."
        ),
        first="grammar.constraints_that_live_together_are_told_apart",
    ),
    Mutant(
        "writer-changes-the-schema",
        "schema_writer.Schemas",
        ('        properties, required = schema.get("properties", {}), schema.get("required", [])\n'),
        ('        properties, required = schema.setdefault("properties", {}), schema.setdefault("required", [])\n'),
        (
            "C: No verb changes the constraint, nor what is in it, nor what its text is parsed to: "
            "neither supports and compile nor those of the grammar and its matchers. types.py, parsed: "
            "It is shared: whoever needs another one copies it."
        ),
        first="grammar.constraints_are_not_changed",
    ),
)
