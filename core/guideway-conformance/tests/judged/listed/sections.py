"""Mistakes in `judged.plugins.sections`: a budget of tokens for each section."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "sections-key-without-white-space",
        "sections.Sections",
        ("        return self.wish(request).marker\n\n    def start"),
        ("        return self.wish(request).marker.strip()\n\n    def start"),
        (
            "contracts/modifier.md: Either of two requests with equal `compile_key`s may be given what was "
            "compiled for the other: rows, end and `report` are the same."
        ),
        first="modifier.equal_keys_mean_equal_values",
    ),
    Mutant(
        "sections-forced-one-past-the-limit",
        "sections.Sections",
        (
            "        while len(found) < limit and not ahead.ended and (must := ahead.must()) is not None:\n"
            "            found.append(must)\n"
        ),
        (
            "        while not ahead.ended and (must := ahead.must()) is not None:\n"
            "            found.append(must)\n"
            "            if len(found) > limit:\n"
            "                break\n"
        ),
        "contracts/modifier.md: `forced` gives at most `limit` tokens, all of the vocabulary.",
        reason=(
            "No sequence was far enough to be forced when it was asked with a limit. It is asked at each "
            "place of its life, with limits beside the number of tokens that it forces."
        ),
        now="modifier.forced_keeps_its_limit",
    ),
    Mutant(
        "sections-validate-asks-the-state-before-the-drafts",
        "sections.Sections",
        "            if ahead.forbids(token_id) or ahead.ended:\n",
        "            if state.forbids(token_id) or ahead.ended:\n",
        (
            "contracts/modifier.md: A `validate` that does not let all drafts of a sequence pass lets none "
            "pass that the transform forbids in the row before it, whatever the logits"
        ),
        first="modifier.forced_is_all_that_is_left",
    ),
    Mutant(
        "sections-one-buffer",
        "sections.Sections",
        (
            "        self.buffers = [np.empty((0, words), dtype=np.int32) for _ in range(2)]  # a payload "
            "stays for a step\n"
        ),
        "        self.buffers = [np.empty((0, words), dtype=np.int32)]\n",
        "contracts/modifier.md: The arrays of a payload stay as they are until the second prepare after.",
        first="modifier.payload_holds_a_step",
    ),
    Mutant(
        "sections-sign-bit-of-a-word",
        "sections.Sections",
        "            mask[entry].view(np.uint32)[may_not // 32] ^= np.uint32(1 << may_not % 32)\n",
        "            mask[entry, may_not // 32] &= ~(1 << may_not % 32)\n",
        (
            "contracts/modifier.md: A request that `start` takes is served: whatever signs the texts in its "
            "options have, no later call raises."
        ),
        reason=(
            "No letter of an example had a token id at the end of a word of a bitmask. There is a vocabulary"
            " now in which all have."
        ),
        now="modifier.any_width",
    ),
    Mutant(
        "sections-moves-on-after-the-end",
        "sections.Sections",
        ("        if not self.marker.token_ids or self.ended:\n            return\n"),
        ("        if not self.marker.token_ids:\n            return\n"),
        (
            "writing/modifier.md: State, outcome and report are then those of the same tokens one by one. If"
            " one of them ends the text, `accept` returns `FINISH` for the step, whatever comes after it."
        ),
        reason=(
            "The text goes on to the end of the step for its user too, so a report may count it. That such a"
            " step ends the sequence is compared now; docs/writing says that the report is free."
        ),
        correct=True,
    ),
    Mutant(
        "sections-compile-keeps-its-work-on-the-instance",
        "sections.Sections",
        (
            '        text = self.wish(request).marker.encode("utf-8", "surrogatepass")\n'
            "        ids = [self.byte_ids.get(text[i : i + 1], -1) for i in range(len(text))]\n"
        ),
        (
            '        self.text = self.wish(request).marker.encode("utf-8", "surrogatepass")\n'
            "        ids = [self.byte_ids.get(self.text[i : i + 1], -1) for i in range(len(self.text))]\n"
        ),
        "contracts/modifier.md: `compile` may be called from several threads at once.",
        first="modifier.compile_serves_several_threads",
    ),
    Mutant(
        "sections-byte-ids-shared-by-all-instances",
        "sections.Sections",
        (
            "    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:\n"
            "        super().__init__(options, context)\n"
            '        self.settings = parse_options(Settings, options, where="modifier.sections")\n'
            "        self.byte_ids: dict[bytes, int] = {}\n"
        ),
        (
            "    byte_ids: ClassVar[dict[bytes, int]] = {}\n"
            "\n"
            "    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:\n"
            "        super().__init__(options, context)\n"
            '        self.settings = parse_options(Settings, options, where="modifier.sections")\n'
        ),
        (
            "contracts/modifier.md: A process may have instances of several vocabularies: what one finds in "
            "its own is nothing to another."
        ),
        first="modifier.any_vocabulary_beside_another",
    ),
    Mutant(
        "sections-words-of-the-vocabulary",
        "sections.Sections",
        "        words = num_words(context.vocabulary.logits_width)\n",
        "        words = num_words(len(context.vocabulary))\n",
        (
            "docstring of LogitTransform.bitmask: The payload array that is a bitmask, ``int32[m, "
            "num_words(logits_width)]`` as in `guideway.api.bitmask`"
        ),
        reason="The padding of the logits was of less than a word. It is of more than two now, in all checks.",
        now="modifier.a_bitmask_is_all_it_applies",
    ),
)
