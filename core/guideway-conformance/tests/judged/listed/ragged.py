"""Mistakes in `judged.plugins.ragged`: attention in a packed row."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "r-key-heads-tiled",
        "ragged.Ragged",
        "x.repeat_interleave(group, dim=0)",
        "x.repeat(group, 1, 1, 1)",
        "Query heads share key heads: of h on k, head i uses key head ``i // (h // k)``.",
        first="attention.query_heads_share_key_heads",
    ),
    Mutant(
        "r-bands-by-length",
        "ragged.Ragged",
        (
            "        made = self.bands.get((length, window, device))\n"
            "        if made is None:\n"
            "            with torch.inference_mode(False):  # they are used outside of it too\n"
            "                places = torch.arange(length, device=device)[:, None] - torch.arange(window, "
            "device=device)\n"
            "                made = places.clamp(min=0), places < 0\n"
            "            if len(self.bands) >= KEPT:\n"
            "                self.bands.pop(next(iter(self.bands)))\n"
            "            self.bands[length, window, device] = made\n"
        ),
        (
            "        made = self.bands.get((length, device))\n"
            "        if made is None:\n"
            "            with torch.inference_mode(False):  # they are used outside of it too\n"
            "                places = torch.arange(length, device=device)[:, None] - torch.arange(window, "
            "device=device)\n"
            "                made = places.clamp(min=0), places < 0\n"
            "            if len(self.bands) >= KEPT:\n"
            "                self.bands.pop(next(iter(self.bands)))\n"
            "            self.bands[length, device] = made\n"
        ),
        (
            "A call's result does not depend on the calls before it, whatever their lengths, and does not "
            "change after it."
        ),
        reason="Calls of one length had one window; now a layer sees farther than the one before.",
        now="attention.calls_do_not_remember",
    ),
    Mutant(
        "r-lengths-in-order",
        "ragged.Ragged",
        "for length, run in groupby(lengths):",
        "for length, run in groupby(sorted(lengths)):",
        "Sequences of any lengths in any order each get what they would get alone.",
        first="attention.keeps_sequences_apart",
    ),
    Mutant(
        "r-last-part-as-large",
        "ragged.Ragged",
        "number = min(at_once, count - done)",
        "number = min(at_once, count)",
        "Sequences of any lengths in any order each get what they would get alone.",
        reason="Few sequences had the same length; now hundreds have.",
        now="attention.many_of_one_length",
    ),
    Mutant(
        "r-window-refused-if-it-hides",
        "ragged.Ragged",
        "if window is not None and not causal:",
        "if window is not None and not causal and window < max(lengths, default=0):",
        "attend: 'Raises `UnsupportedCapability` for what is not among its `capabilities`.'",
        reason="What is not declared was tried with long texts; now with a short one too.",
        now="attention.window_reaches_to_both_sides",
    ),
    Mutant(
        "r-lone-tokens-get-their-values",
        "ragged.Ragged",
        ("        first = 0\n        for length, run"),
        (
            "        if set(lengths) == {1} and key.shape[1] == query.shape[1]:\n"
            "            return value  # each place sees itself alone\n"
            "        first = 0\n"
            "        for length, run"
        ),
        "attend: 'Returns a tensor ... with any strides and no memory of the arguments, which stay as they are'",
        first="attention.arguments_stay_as_they_are",
    ),
    Mutant(
        "r-scales-the-query-in-place",
        "ragged.Ragged",
        "queries = query * scale",
        "queries = query.mul_(scale)",
        "Arguments are the same after the call, and the result has no memory of theirs.",
        first="attention.attends",
    ),
    Mutant(
        "r-hidden-is-unlikely",
        "ragged.Ragged",
        ("            scores = scores.masked_fill(hidden, -torch.inf)\n        return"),
        ("            scores = scores.masked_fill(hidden, -1e9)\n        return"),
        (
            "docs/writing/attention.md: 'What stands in others, and in padding, has no influence at all: it "
            "is hidden, not made unlikely.' With `causal`, a place sees those up to its own, and no later one."
        ),
        reason="Scores were not below some -1e5; now down to -1e35.",
        now="attention.extreme_scores_stay_finite",
    ),
    Mutant(
        "r-bands-of-inference",
        "ragged.Ragged",
        "with torch.inference_mode(False):",
        "with torch.no_grad():",
        "A backend works inside ``torch.inference_mode()``, outside of it, and in turn.",
        reason=(
            "It fails for arguments that require gradients. The contract promises none: torch's flex "
            "attention has none on a CPU, and the contract says so now."
        ),
        correct=True,
    ),
)
