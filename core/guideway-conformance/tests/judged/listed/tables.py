"""Mistakes in `judged.plugins.tables`: tables of separated values, a dialect."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "tables-later-rows-alike",
        "tables.Tables",
        ("    def mask(self, state: State) -> np.ndarray:\n"),
        (
            "    def mask(self, state: State) -> np.ndarray:\n"
            "        state = state._replace(row=min(state.row, self.least))  # rows after those that "
            "must be are alike\n"
        ),
        "G, fill_bitmask: so that bit t is set exactly if ``accept([t]) == 1``.",
        first="grammar.walks_end_in_the_language",
    ),
    Mutant(
        "tables-keys-may-run-dry",
        "tables.Tables",
        ("            return State(row, column, longer, seen) if this.alive(longer, seen[column]) else None\n"),
        ("            return State(row, column, longer, seen)\n"),
        (
            "C: Whatever is drawn from the masks, a token is always legal, and what a stop token ends "
            "obeys the constraint."
        ),
        first="grammar.walks_end_in_the_language",
    ),
    Mutant(
        "tables-separator-ignored",
        "tables.Tables",
        "self.options.separator.encode()",
        'b","',
        (
            "G, GrammarStrategy: `options` are the operator's, as written in the configuration; "
            "`parse_options` checks them. W: Options of the operator come to the constructor."
        ),
        reason="What an option means is its author's to say: no sentence has it change an output.",
        correct=True,
    ),
    Mutant(
        "tables-native-draft-rows",
        "tables.Tables",
        ("            job.matcher.write(state, bitmask, job.first_row + count + 1)\n"),
        ("            job.matcher.write(state, bitmask, job.first_row + count)\n"),
        (
            "G, fill: A job's first row is the mask of its state, the row after draft i the mask once "
            "drafts up to i were accepted."
        ),
        reason=(
            "A strategy that cannot roll back gets no drafts in a fill of its own: hosts fill those by the default."
        ),
        correct=True,
    ),
    Mutant(
        "tables-error-swallowed",
        "tables.Tables",
        ("                job.error, accepted[i] = error, -1\n"),
        ("                accepted[i] = -1\n"),
        "G, FillJob.error: Why this job's result is -1; set by `GrammarStrategy.fill`.",
        reason=(
            "Its own fill never ran, as jobs had wrappers of the suite; now they have its matchers, without drafts too."
        ),
        now="grammar.a_failed_job_fails_alone",
    ),
    Mutant(
        "tables-too-many-rows-invalid",
        "tables.Tables",
        ('            raise UnsupportedGrammar(f"more than {self.options.max_rows} rows", feature="rows")\n'),
        ('            raise InvalidGrammar(f"more than {self.options.max_rows} rows")\n'),
        (
            "C: InvalidGrammar is for what no strategy could serve; what one lacks is "
            "UnsupportedGrammar, with a feature."
        ),
        reason="The options of a strategy were never varied.",
        now="grammar.other_values_of_its_options_are_served",
    ),
    Mutant(
        "tables-more-rows-than-flags",
        "tables.Tables",
        (
            '        if any(column.unique and column.type == "flag" for column in columns):\n'
            "            most = min(most, len(FLAGS))\n"
        ),
        "",
        (
            "G, compile: a grammar that matches no text at all is invalid. C: Whatever is drawn from "
            "the masks, a token is always legal."
        ),
        reason=(
            "Of a dialect the examples alone were tried; now what differs from them in a number is walked to its ends."
        ),
        now="grammar.near_constraints_of_a_dialect_have_ends",
    ),
    Mutant(
        "tables-nbytes-unlocked",
        "tables.Tables",
        (
            "        with self.lock:\n"
            "            return 4096 + sum(mask.nbytes + 1000 for mask in self.masks.values())\n"
        ),
        ("        return 4096 + sum(mask.nbytes + 1000 for mask in self.masks.values())\n"),
        ("C: Threads may use the matchers of one compiled grammar, each its own, at once, and ask for its nbytes."),
        first="grammar.a_compiled_grammar_is_shared_by_threads",
    ),
)
