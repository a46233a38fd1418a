"""Mistakes in `judged.plugins.byte_automaton`: regular expressions as a lazy automaton over bytes."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "automaton-planes",
        "byte_automaton.Regexes",
        ("    for most in (0x7F, 0x7FF, 0xFFFF):\n"),
        ("    for most in (0x7F, 0x7FF):\n"),
        (
            "C: A regex allows exactly the texts that match it as a whole, whichever tokens spell "
            "them; a set has characters, not bytes."
        ),
        first="grammar.a_regex_allows_exactly_its_matches",
    ),
    Mutant(
        "automaton-stops-in-the-cache",
        "byte_automaton.Regexes",
        ("            words = words.copy()\n"),
        "",
        "C: The stop tokens of one matcher are not those of another one of the same grammar.",
        first="grammar.matchers_with_other_stop_tokens_are_independent",
    ),
    Mutant(
        "automaton-unlocked-lru",
        "byte_automaton.Regexes",
        (
            "        with self.lock:\n"
            "            if state in self.masks:\n"
            "                self.masks.move_to_end(state)\n"
            "                return self.masks[state]\n"
        ),
        (
            "        if state in self.masks:\n"
            "            self.masks.move_to_end(state)\n"
            "            return self.masks[state]\n"
        ),
        ("C: Threads may use the matchers of one compiled grammar, each its own, at once, and ask for its nbytes."),
        first="grammar.a_compiled_grammar_is_shared_by_threads",
    ),
    Mutant(
        "automaton-only-dead-ends-caught",
        "byte_automaton.Regexes",
        ("    except Exception as error:\n        job.error = error\n"),
        ("    except DeadEnd as error:\n        job.error = error\n"),
        ("G, fill: -1 if its matcher failed (`FillJob.error` says why), which leaves all other jobs' rows correct."),
        reason=(
            "A stranger's matcher was the only one that failed, and the plugin takes its own alone; "
            "now its own is broken, with several kinds of errors."
        ),
        now="grammar.a_failed_job_fails_alone",
    ),
    Mutant(
        "automaton-one-pool",
        "byte_automaton.Regexes",
        ('            self.pool = ThreadPoolExecutor(self.options.threads, "regexes")\n'),
        ('            self.pool = globals().setdefault("POOL", ThreadPoolExecutor(self.options.threads, "regexes"))\n'),
        "C: A strategy closes without an error, used or unused, and others of its class go on.",
        first="grammar.closing_ends_one_strategy",
    ),
    Mutant(
        "automaton-inline-flags-ignored",
        "byte_automaton.Regexes",
        ("        if code is op.SUBPATTERN and not value[1] and not value[2]:\n"),
        ("        if code is op.SUBPATTERN:\n"),
        (
            "C: A regex allows exactly the texts that match it as a whole. / what one lacks is "
            "UnsupportedGrammar, with a feature."
        ),
        reason="No page said what the language of a regex is, and none with a flag was probed.",
        now="grammar.a_pattern_means_what_python_says",
    ),
    Mutant(
        "automaton-anchors-are-nothing",
        "byte_automaton.Regexes",
        ("        if code is op.ANY:\n"),
        ("        if code is op.AT:\n            return then\n        if code is op.ANY:\n"),
        (
            "C: A regex allows exactly the texts that match it as a whole / A text that is no output "
            "of the language is refused, unless supports said that something is not enforced."
        ),
        reason="No page said what the language of a regex is, and none with an anchor amid was probed.",
        now="grammar.a_pattern_means_what_python_says",
    ),
)
