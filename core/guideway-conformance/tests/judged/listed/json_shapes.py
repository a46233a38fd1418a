"""Mistakes in `judged.plugins.json_shapes`: a strategy for the shape of JSON."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "shape-setdefault-in-parsed",
        "json_shapes.Shape",
        '        listed = each.get("properties", {})\n',
        '        listed = each.setdefault("properties", {}) if "object" in str(each.get("type")) else {}\n',
        (
            "contracts/grammar.md: Neither supports nor compile changes the constraint it is "
            "given, nor what is in it, nor what its text is parsed to. / writing/grammar.md: "
            "`constraint.parsed` ... parsed once for all strategies. Copy it before you change it."
        ),
        reason=(
            "No object without properties stood in a schema that was given as text; now bare "
            "types and a schema of each keyword do, at the root and below others."
        ),
        now="grammar.constraints_are_not_changed",
    ),
    Mutant(
        "shape-grammars-shared-without-spacing",
        "json_shapes.Shape",
        (
            "        net = Net(constraint.spacing)\n"
            "        try:\n"
            "            start = net.schema(constraint.parsed, net.end)\n"
            "        except RecursionError as error:\n"
            '            raise UnsupportedGrammar("this schema is too deep for shape", '
            'feature="depth") from error\n'
            "        return CompiledShape(self.words, *pruned(net, start))\n"
        ),
        (
            "        from weakref import WeakValueDictionary\n"
            "\n"
            '        known = vars(self).setdefault("known", WeakValueDictionary())\n'
            "        compiled = known.get(constraint.source())\n"
            "        if compiled is None:\n"
            "            net = Net(constraint.spacing)\n"
            "            try:\n"
            "                start = net.schema(constraint.parsed, net.end)\n"
            "            except RecursionError as error:\n"
            '                raise UnsupportedGrammar("this schema is too deep for shape", '
            'feature="depth") from error\n'
            "            compiled = known[constraint.source()] = CompiledShape(self.words, "
            "*pruned(net, start))\n"
            "        return compiled\n"
        ),
        (
            "contracts/grammar.md: Between two JSON tokens stands the white space that the "
            "constraint asks for, and never more ..., whichever was asked for before. / "
            "Constraint.spacing: The white space of its JSON, part of its cache key."
        ),
        reason=(
            "The grammar with another spacing was let go of before the next one was "
            "compiled; now constraints that differ in one place live together."
        ),
        now="grammar.constraints_that_live_together_are_told_apart",
    ),
    Mutant(
        "shape-true-equals-one",
        "json_shapes.Shape",
        ("    if isinstance(a, bool) or isinstance(b, bool):\n        return a is b\n"),
        "",
        (
            "writing/grammar.md: The strategy must enforce every keyword that `supports` "
            "lists as enforced. / contracts/grammar.md: No instance that breaks a keyword of "
            "the schema is accepted where supports leaves nothing unenforced."
        ),
        reason="No schema had a number where a boolean stands that equals it in Python.",
        now="grammar.texts_are_judged_by_what_they_mean",
    ),
    Mutant(
        "shape-keywords-below-items-not-named",
        "json_shapes.Shape",
        ('        elif "items" in each and each["items"] is not True:\n            stack.append(each["items"])\n'),
        "",
        (
            "guideway.api.grammar.Support.unenforced: Keywords of this constraint it would "
            "ignore or only partly enforce. / contracts/grammar.md: Each keyword of a "
            "constraint it will compile is named, enforced or unenforced."
        ),
        reason="Keywords were looked for at the root; now every case stands below items, properties and the others.",
        now="grammar.keywords_of_parts_are_named",
    ),
    Mutant(
        "shape-space-optional-in-spaced",
        "json_shapes.Shape",
        '            return self.text(mark + b" ", after)\n',
        '            return self.text(mark, self.either(self.one(b" ", after), after))\n',
        (
            "guideway.api.types.Whitespace: ``spaced``: one space after each comma and each "
            "colon and none elsewhere. / contracts/grammar.md: Between two JSON tokens "
            "stands the white space that the constraint asks for."
        ),
        first="grammar.white_space_is_what_was_asked_for",
    ),
    Mutant(
        "shape-read-grammars-kept",
        "json_shapes.Shape",
        "        return CompiledShape(self.words, *pickle.loads(data))\n",
        (
            '        kept = vars(self).setdefault("read", {})\n'
            "        if data not in kept:\n"
            "            kept[data] = CompiledShape(self.words, *pickle.loads(data))\n"
            "        return kept[data]\n"
        ),
        (
            "contracts/grammar.md: A compiled grammar that nobody holds any more is freed, "
            "and its matchers: what is worth keeping is kept by the host, within its limit."
        ),
        reason="What from_bytes gives was never let go of in a check.",
        now="grammar.released_grammars_are_freed",
    ),
    Mutant(
        "shape-nbytes-without-masks",
        "json_shapes.Shape",
        "            return 4_096 + 900 * len(self.moves) + 400 * len(self.steps) + kept + 400 * len(self.masks)\n",
        "            return 4_096 + 900 * len(self.moves)\n",
        (
            "guideway.api.grammar.CompiledGrammar.nbytes: Memory this grammar holds, in "
            "bytes, as near as it can be told; bounds the host's cache. / "
            "contracts/grammar.md: The nbytes of a grammar that takes 256 KiB or more is at "
            "least an eighth of the memory that it takes."
        ),
        reason="nbytes was asked of unused grammars with 1,000 tokens.",
        now="grammar.nbytes_counts_what_is_learnt",
    ),
    Mutant(
        "shape-only-one-word-more-cleared",
        "json_shapes.Shape",
        "        bitmask[row, len(mask) :] = 0\n",
        "        bitmask[row, len(mask) : len(mask) + 1] = 0\n",
        (
            "contracts/grammar.md: Bits at and past the vocabulary's length are zero, also "
            "in the words that only wider logits have."
        ),
        first="grammar.fill_touches_only_its_row",
    ),
    Mutant(
        "shape-one-item-too-many",
        "json_shapes.Shape",
        "            for _ in range(int(most) - max(least, 1)):\n",
        "            for _ in range(int(most) - least):\n",
        (
            "contracts/grammar.md: No instance that breaks a keyword of the schema is "
            "accepted where supports leaves nothing unenforced."
        ),
        first="grammar.enforced_keywords_are_enforced",
    ),
)
