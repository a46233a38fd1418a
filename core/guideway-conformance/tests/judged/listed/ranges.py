"""Mistakes in `judged.plugins.ranges`: a strategy for a few keywords of JSON Schema."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "ranges-stops-are-written-into-the-kept-row",
        "ranges.Ranges",
        (
            "        target[: len(words)] = words\n"
            "        target[len(words) :] = 0\n"
            "        for stop in self.stops if done else ():\n"
            "            target[stop // 32] |= np.uint32(1 << stop % 32)\n"
        ),
        (
            "        for stop in self.stops if done else ():\n"
            "            words[stop // 32] |= np.uint32(1 << stop % 32)\n"
            "        target[: len(words)] = words\n"
            "        target[len(words) :] = 0\n"
        ),
        "The stop tokens of one matcher are not those of another one of the same grammar.",
        reason="Matchers were compared with others of the same past.",
        now="grammar.matchers_with_other_stop_tokens_are_independent",
    ),
    Mutant(
        "ranges-a-draft-into-a-dead-end-counts",
        "ranges.Ranges",
        ("            except DeadEnd:\n                return count\n"),
        ("            except DeadEnd:\n                return count + 1\n"),
        "after one that leads to a dead end (it counts as refused) stay untouched.",
        first="grammar.a_draft_into_a_dead_end_is_refused",
        reason="A strategy without rollback gets no drafts in a fill of its own, since the contract says so.",
        correct=True,
    ),
    Mutant(
        "ranges-counts-are-int64",
        "ranges.Ranges",
        "accepted = np.zeros(len(jobs), np.int32)",
        "accepted = np.zeros(len(jobs), np.int64)",
        "``int32[len(jobs)]``: how many of its drafts each job would accept.",
        first="grammar.fill_is_one_mask_after_another",
    ),
    Mutant(
        "ranges-only-dead-ends-are-contained",
        "ranges.Ranges",
        ("            except Exception as error:\n                job.error"),
        ("            except DeadEnd as error:\n                job.error"),
        "or -1 if its matcher failed (`FillJob.error` says why), which leaves all other jobs' rows correct.",
        reason="Jobs failed at dead ends alone.",
        now="grammar.a_failed_job_fails_alone",
    ),
    Mutant(
        "ranges-unique-items-said-to-be-enforced",
        "ranges.Ranges",
        'NOT_ENFORCED = frozenset({"multipleOf", "uniqueItems"})',
        'NOT_ENFORCED = frozenset({"multipleOf"})',
        "The strategy must enforce every keyword that `supports` lists as enforced.",
        reason="The keyword stood beside items of any type alone, which narrow strategies refuse.",
        now="grammar.enforced_keywords_are_enforced",
    ),
    Mutant(
        "ranges-bounds-are-cut-to-integers",
        "ranges.Ranges",
        "return math.ceil(value)",
        "return int(value)",
        ("No instance that breaks a keyword of the schema is accepted where supports leaves nothing unenforced."),
        reason="Bounds were whole numbers.",
        now="grammar.enforced_keywords_are_enforced",
    ),
    Mutant(
        "ranges-the-upper-bound-of-negatives-is-forgotten",
        "ranges.Ranges",
        "(max(1, -high) if high is not None else 1, low and -low)",
        "(1, low and -low)",
        (
            "No wrong instance of any schema, with one keyword or with two side by side, is accepted "
            "where supports leaves nothing unenforced."
        ),
        first="grammar.enforced_keywords_are_enforced",
    ),
    Mutant(
        "ranges-reads-whitespace-instead-of-spacing",
        "ranges.Ranges",
        'constraint.spacing == "spaced"',
        'constraint.whitespace == "spaced"',
        (
            "Strategies read `spacing`; spacing: Raises `InvalidGrammar` if it is no `Whitespace`. "
            "(docs/contracts/grammar.md: A malformed constraint is not compiled.)"
        ),
        reason="No malformed constraint had white space of another word.",
        now="grammar.malformed_constraints_are_refused",
    ),
    Mutant(
        "ranges-languages-are-kept-by-source",
        "ranges.Ranges",
        (
            "        language = self._language(constraint, set())\n"
            "        if language is None:\n"
            "            raise InvalidGrammar("
        ),
        (
            '        known = vars(self).setdefault("_known", {})\n'
            "        if constraint.source() not in known:\n"
            "            known[constraint.source()] = self._language(constraint, set())\n"
            "        language = known[constraint.source()]\n"
            "        if language is None:\n"
            "            raise InvalidGrammar("
        ),
        "The white space of its JSON, part of its cache key.",
        reason="No schema was compiled under several words for white space of which a narrow strategy takes one.",
        now="grammar.white_space_is_what_was_asked_for",
    ),
    Mutant(
        "ranges-wide-words-are-left",
        "ranges.Ranges",
        ("        target[: len(words)] = words\n        target[len(words) :] = 0\n"),
        "        target[: len(words)] = words\n",
        "Bits at and past the vocabulary's length are zero, also in the words that only wider logits have.",
        first="grammar.fill_touches_only_its_row",
    ),
    Mutant(
        "ranges-kept-rows-without-a-lock",
        "ranges.Ranges",
        (
            "        with self._lock:\n"
            "            row = self._rows.get(state)\n"
            "            if row is not None:\n"
            "                self._rows.move_to_end(state)\n"
            "                return row\n"
            "        legal"
        ),
        (
            "        row = self._rows.get(state)\n"
            "        if row is not None:\n"
            "            self._rows.move_to_end(state)\n"
            "            return row\n"
            "        legal"
        ),
        "Threads may use the matchers of one compiled grammar, each its own, at once.",
        reason=("A race that shows in one of many thousands of fills, and only with more states in use than it keeps."),
        survives=True,
    ),
    Mutant(
        "ranges-a-fork-of-what-is-over-goes-on",
        "ranges.Ranges",
        "RangeMatcher(self.compiled, self.stops, self.state, self.over)",
        "RangeMatcher(self.compiled, self.stops, self.state)",
        "A fork is in the state of its matcher, anywhere, also once terminated, with the same stop tokens.",
        first="grammar.a_fork_is_in_the_same_state",
    ),
    Mutant(
        "ranges-annotations-are-removed-in-place",
        "ranges.Ranges",
        (
            '    schema = {key: value for key, value in schema.items() if key not in {"title", '
            '"description", "$comment"}}\n'
        ),
        ('    for key in ("title", "description", "$comment"):\n        schema.pop(key, None)\n'),
        (
            "It is shared: whoever needs another one copies it. (docs/contracts/grammar.md: Neither "
            "supports nor compile changes the constraint it is given.)"
        ),
        reason="What was compared were the fields, and not what a text is parsed to.",
        now="grammar.constraints_are_not_changed",
    ),
    Mutant(
        "ranges-digits-are-kept-for-ever",
        "ranges.Ranges",
        "(negative, self.ANY if size >= max(least, 1) else size)",
        "(negative, size)",
        (
            "The mask and the acceptance of a token take about as many lines of Python, as much memory "
            "and as much processor time after 4,096 tokens as after 64."
        ),
        reason="It costs 0.001 ms a token after 4,096: less than any margin.",
        correct=True,
    ),
    Mutant(
        "ranges-validate-over-a-stop-terminates",
        "ranges.Ranges",
        "        return self._walk(token_ids)[0]\n",
        (
            "        state = self.state\n"
            "        count = self.accept(token_ids)\n"
            "        self.state = state\n"
            "        return count\n"
        ),
        "Validate leaves the state as it was.",
        first="grammar.validate_counts_as_accept_does",
    ),
    Mutant(
        "ranges-max-items-zero",
        "ranges.Ranges",
        'if place == "end" or self.most == 0:',
        'if place == "end":',
        ("No instance that breaks a keyword of the schema is accepted where supports leaves nothing unenforced."),
        reason="No array had to be empty.",
        now="grammar.enforced_keywords_are_enforced",
    ),
    Mutant(
        "ranges-true-is-an-integer",
        "ranges.Ranges",
        "values = [value for value in values if type(value) is wanted]",
        "values = [value for value in values if isinstance(value, wanted)]",
        (
            "No wrong instance of any schema, with one keyword or with two side by side, is accepted "
            "where supports leaves nothing unenforced."
        ),
        reason="No list of values had true beside 1 under a type.",
        now="grammar.enforced_keywords_are_enforced",
    ),
    Mutant(
        "ranges-keywords-of-items-are-not-named",
        "ranges.Ranges",
        'item = read(schema["items"], comma, seen)',
        'item = read(schema["items"], comma, set())',
        "Each keyword of a constraint it will compile is named, enforced or unenforced.",
        first="grammar.supports_names_every_keyword",
    ),
    Mutant(
        "ranges-one-word-too-many",
        "ranges.Ranges",
        "row = np.zeros(num_words(self.size), np.uint32)",
        "row = np.zeros(self.size // 32 + 1, np.uint32)",
        "Masks are right for 31, 32, 33 and as many tokens.",
        first="grammar.vocabularies_of_any_size_work",
    ),
)
