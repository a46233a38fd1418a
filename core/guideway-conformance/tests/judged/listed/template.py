"""Mistakes in `judged.plugins.template`: templates of a dialect as tables."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "tp-pool-forgotten-at-close",
        "template.Template",
        "self.workers.shutdown(wait=True)",
        "self.tokens = None",
        (
            "docs/contracts/grammar.md: 'When a strategy is closed, its threads end and its files are "
            "closed, though somebody still holds it.'"
        ),
        first="grammar.closing_ends_threads_and_files",
    ),
    Mutant(
        "tp-pool-of-the-class",
        "template.Template",
        '        self.workers = ThreadPoolExecutor(2, thread_name_prefix="template")',
        (
            "        cls = type(self)\n"
            '        cls.workers = getattr(cls, "workers", None) or ThreadPoolExecutor(2, '
            'thread_name_prefix="template")'
        ),
        (
            "docs/contracts/grammar.md: 'A strategy closes without an error, used or unused, and others "
            "of its class go on.'"
        ),
        first="grammar.closing_ends_one_strategy",
    ),
    Mutant(
        "tp-refused-token-undoes-all",
        "template.Template",
        "                return count, state\n",
        "                return count, self.state\n",
        (
            "api/grammar.py Matcher.accept: 'Advance over `token_ids` up to the first one that is not "
            "legal, keep those before it, and return their count'"
        ),
        first="grammar.accept_keeps_what_precedes_a_refused_token",
    ),
    Mutant(
        "tp-extra-words-not-cleared",
        "template.Template",
        "        bitmask[row, len(mask) :] = 0\n",
        "",
        "api/grammar.py Matcher.fill_bitmask: 'bits at and past the vocabulary's length are zero'",
        first="grammar.fill_touches_only_its_row",
    ),
    Mutant(
        "tp-masks-as-they-complete",
        "template.Template",
        ("masks = np.concatenate(list(self.workers.map(lambda part: self.tokens.masks(table, part), states)))"),
        (
            "from concurrent.futures import as_completed\n"
            "\n"
            "        parts = [self.workers.submit(self.tokens.masks, table, part) for part in states]\n"
            "        masks = np.concatenate([part.result() for part in as_completed(parts)])"
        ),
        (
            "api/grammar.py Matcher.fill_bitmask: 'bit t is set exactly if accept([t]) == 1'; 'Every "
            "answer is a function of constraint, stop tokens and accepted tokens alone'"
        ),
        now="grammar.long_constraints_of_a_dialect_are_right",
        reason=("A dialect's constraints were as short as its examples; now an example stands many times over in one."),
    ),
    Mutant(
        "tp-too-large-is-called-invalid",
        "template.Template",
        'raise UnsupportedGrammar(f"this template has {len(live)} states", feature="states")',
        'raise InvalidGrammar(f"this template has {len(live)} states")',
        (
            "docs/contracts/grammar.md: 'InvalidGrammar is for what no strategy could serve; what one "
            "lacks is UnsupportedGrammar, with a feature.'; 'it refuses what it compiled before with "
            "UnsupportedGrammar, as it is still valid'"
        ),
        now="grammar.other_values_of_its_options_are_served",
        reason=(
            "Options had values near others, and none of the sizes between; now a number becomes half of "
            "what it was again and again."
        ),
    ),
)
