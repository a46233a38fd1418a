"""Mutants that no check can distinguish from their originals, and why: see `test_mutants`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from suite_support.survivors_of_legacy import LEGACY

__all__ = ["DROPPED", "SURVIVORS"]

DROPPED = "the statement is dropped"
"""The change of a mutant without a statement, whatever that statement is."""

WISHED = 'wished = step.ops.gather(logits, payload.rows) + holds_letter * payload.arrays["strength"][:, None]'
HOLDING = "holding = [i for i, token in enumerate(vocabulary.tokens) if letter.encode() in token.lower()]"
ONLY_MEMORY = "memory held, which can be told only roughly"
OTHER_ARRAYS = "logits of another library, of which the suite has none for a device of NumPy"
OWN_REFUSALS = "which patterns it refuses is a strategy's own affair, and compile refuses them too"
OWN_OPTIONS = "which options it takes is a strategy's own affair"
SHORTER = "the same language, written shorter"
QUALITY = "whether random numbers, and what is made of them, are good ones, no certificate says"
MORE_NUMBERS = "more numbers than are used"
NO_ROWS = "None has no rows here"
KEY_OR_NONE = (
    "where it is said of None, which has no rows here; elsewhere which option is the key is the modifier's affair"
)
OTHER_WISH = "what a request may wish for, and what comes of it, is the modifier's own affair"
KEYED = 'hashed = step.ops.uniform(payload.arrays["key"], previous, previous, 0, self.context.logits_width)'
RAISED = 'raised = step.ops.gather(logits, payload.rows) + payload.arrays["delta"][:, None]'
GREEN = "return step.ops.where_rows(logits, payload.rows, hashed < 0.5, raised)"
NOISE = 'noise = -ops.log(-ops.log(step.uniform("gumbel", payload.rows, self.context.logits_width)))'
GUIDED = 'guided = unconditional + payload.arrays["scale"][:, None] * (conditional - unconditional)'
MASS = 'step.emit("mass", (probability * step.bitmask(rows)).sum(axis=1))'
CHILDREN = (
    "return {p[-1]: float(np.log(m)) for p, m in state.known.items() if len(p) == len(path) + 1 and p[:-1] == path}"
)
EITHER = "either = (conditional > -np.inf) * (unconditional > -np.inf)  # the model's own -inf stay"


def _one_by_one(
    grouped: Mapping[str, Mapping[str, tuple[str | tuple[str, ...], ...]]],
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the entries of a table by file and reason."""
    for file, reasons in grouped.items():
        for reason, places in reasons.items():
            for place in places:
                line, *changes = (place,) if isinstance(place, str) else place
                if not changes:
                    yield (file, line), reason
                for change in changes:
                    yield (file, line, change), reason


SURVIVORS: dict[str, dict[tuple[str, ...], str]] = {
    "guideway_conformance.reference": {
        ("strategy.py", 'parse_options(Options, options, where="grammar.reference")'): OWN_OPTIONS,
        ("expressions.py", "flat.discard(self.NOTHING)"): SHORTER,
        ("strategy.py", 'reason = _why_not_pattern(subschema["pattern"])'): OWN_REFUSALS,
        ("strategy.py", "if reason is not None:"): OWN_REFUSALS,
        ("strategy.py", "parse_regex(Language(), pattern)"): OWN_REFUSALS,
        ("strategy.py", "return NBYTES_PER_ENTRY * len(self.language)"): ONLY_MEMORY,
        ("expressions.py", "return len(self._known) + len(self._derivatives)"): ONLY_MEMORY,
    },
    "guideway.devices": {
        (
            "numpy/device.py",
            "blocks = np.arange(-(-width // 4), dtype=np.uint64)[None, :]",
        ): MORE_NUMBERS,
        (
            "numpy/device.py",
            "return np.where(np.isneginf(largest), 0, largest)",
        ): "rows that allow nothing",
        ("numpy/device.py", 'if device != "cpu":'): "which names of devices are refused",
        ("numpy/device.py", "logits = logits.detach().cpu()"): OTHER_ARRAYS,
        ("numpy/device.py", 'if str(logits.dtype) == "torch.bfloat16":'): OTHER_ARRAYS,
        ("numpy/device.py", "logits = logits.float()"): OTHER_ARRAYS,
    },
    "guideway_hello": {
        ("__init__.py", WISHED): OTHER_WISH,
        ("__init__.py", "return step.ops.where_rows(logits, payload.rows, True, wished)"): OTHER_WISH,
        ("__init__.py", 'if not re.fullmatch("[a-z]", wish.letter) or not -100 <= wish.strength <= 100:'): OTHER_WISH,
        (
            "__init__.py",
            "wishes = [wish for i in sequences if (wish := states[i]) is not None]",
        ): NO_ROWS,
        ("__init__.py", "if not wishes:"): "an empty payload does as little as none",
        ("__init__.py", HOLDING): OTHER_WISH,
        ("__init__.py", "self.tables[letter][holding] = 1"): OTHER_WISH,
    },
    "tests.support": {
        # probes; GreenList
        ("probes.py", KEYED, "0 becomes 1"): QUALITY,
        ("probes.py", RAISED, "Add becomes Sub"): OTHER_WISH,
        ("probes.py", GREEN, "Lt becomes LtE"): "a uniform number is an odd multiple of 2**-24, so none is 0.5",
        (
            "probes.py",
            "keys = np.array([state[0] if state else 0 for state in states], dtype=np.int64)",
            "0 becomes 1",
        ): KEY_OR_NONE,
        (
            "probes.py",
            "deltas = np.array([state[1] if state else 0 for state in states], dtype=np.float32)",
            "0 becomes 1",
        ): NO_ROWS,
        # Gumbel
        ("probes.py", NOISE, "USub is dropped"): QUALITY,
        ("probes.py", "return ops.argmax(ops.gather(logprobs, payload.rows) + noise)", "Add becomes Sub"): QUALITY,
        (
            "probes.py",
            "return True if self.name in request.params.modifiers else None",
            "True becomes False",
        ): "a state is whatever is not None",
        # Guidance
        ("probes.py", GUIDED, "Add becomes Sub"): OTHER_WISH,
        ("probes.py", GUIDED, "Sub becomes Add"): OTHER_WISH,
        ("probes.py", GUIDED, "Mult becomes Add"): OTHER_WISH,
        (
            "probes.py",
            EITHER,
            "Gt becomes GtE",
        ): "of the first of the two: where the request's own row is at -inf, what comes of it is -inf too",
        (
            "probes.py",
            "scales = np.array([state or 0 for state in states], dtype=np.float32)",
            "0 becomes 1",
        ): NO_ROWS,
        # Aligned
        ("probes.py", MASS, "Mult becomes Add"): "what it tells its own other half is the modifier's affair",
        ("probes.py", "repeated = (rows[:, None] + 0 * ids).reshape(-1)", "Add becomes Sub"): "what is added is 0",
        ("probes.py", "super().__init__(options, context)", DROPPED): "it reads nothing of what the base class keeps",
        (
            "probes.py",
            "width = max(1, *(len(found) for found in corrections))",
            "1 becomes 2",
        ): "a column more, in which 0 is added to token 0",
        (
            "probes.py",
            CHILDREN,
            "1 becomes 2",
        ): "of the last of the three: after some tokens it then corrects nothing, which is its own affair",
        (
            "probes.py",
            "for token_id, mass in zip(token_ids, masses, strict=True):",
            "True becomes False",
        ): "a token has one mass: feedback is of the tokens that are heard",
    },
    "guideway_legacy": dict(_one_by_one(LEGACY)),
}
"""By package, then by file, line and optionally change: why no check can tell the mutant from its original."""
