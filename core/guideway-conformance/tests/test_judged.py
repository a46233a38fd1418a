"""The verdicts of the suite on plugins of people who read the contract and saw no check: see `judged`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest
from guideway_conformance.isolation import CannotLoad, Host
from guideway_conformance.registry import TIERS, checks, plan
from guideway_conformance.runner import run
from guideway_conformance.target import Target
from judged.listed import MUTANTS
from judged.mutant import Mutant

from tests.support.stages import everyday

CORRECT = (
    *("watermarks.Green", "watermarks.Aaronson", "watermarks.Xtc", "repetition.Dry", "repetition.Phrases"),
    *("thinking.Budget", "thinking.Unsaid", "hidden.Probe", "hidden.Against", "regexes.Small"),
    *("devices.Fast", "devices.Pure", "attentions.Stream", "attentions.Rows", "workers.Peak", "workers.Ledger"),
    *("quotas.Quotas", "quotas.Journal", "quotas.HouseRules", "workers.Fullness", "workflows.Pairs", "devices.Chunked"),
    *("sampling.MinP", "sampling.Typical", "sampling.Sigma", "sampling.Sharp", "alphabets.Alphabet", "pacing.NoRepeat"),
    *("pacing.Frequency", "pacing.Fading", "pacing.Closing", "pacing.Steady", "forms.Calendar", "forms.Brackets"),
    *("tailfree.TailFree", "ngramfade.NgramFade", "lexicon.Lexicon", "tournament.Tournament", "scaffold.Scaffold"),
    *("blocks.Blocks", "torchlets.Torchlets", "plain.Plain", "online.Online", "ragged.Ragged"),
    *("trie_choice.TrieChoice", "ranges.Ranges", "brackets.Brackets", "lazyre.LazyRegex"),
    *("json_shapes.Shape", "near_words.Near", "elements.Markup", "echoes.Echo"),
    *("ledger.Ledger", "admission.Admission", "memguard.MemoryGuard", "adapter.Adapter"),
    *("similarity.Similarity", "keywords.Keywords", "signatures.Signatures"),
    *("contrast.Contrast", "echo.Echo", "meter.Meter", "steady.Steady"),
    *("staged.Staged", "loops.Loops", "groups.Groups", "chunks.Chunks"),
    *("sampling_fence.SamplingFence", "replay_journal.ReplayJournal", "finite_watch.FiniteWatch"),
    *("pooled_choices.Choices", "byte_automaton.Regexes", "byte_automaton.Bounded"),
    *("schema_writer.Schemas", "tables.Tables", "tag_markup.Markup"),
    *("fakequant.FakeQuant", "lexical.LexicalWorkflow", "prefer.PreferWorkflow", "spans.SpanWorkflow"),
    *("tiles.Tiles", "lanes.Lanes", "pooled.Pooled", "blocked.Blocked", "rowwise.Rowwise"),
    *("heat.Heat", "sections.Sections", "norepeat.NoRepeat", "steer.Steer", "seal.Seal"),
    *("tenant_limits.PLUGIN", "audit_log.PLUGIN", "nan_watch.NanWatch", "few_bits.FakeQuant"),
    *("cosines.Similar", "shelves.Shelves"),
    *("house_rules.PLUGIN", "usage_ledger.PLUGIN", "finite_guard.FiniteGuard", "rescale.Rescale"),
    *("sketch.SketchWorkflow", "compare.Compare"),
    *("fading.Fading", "greenlist.Greenlist", "allowance.Allowance", "leash.Leash", "away.Away"),
    *("tiled.Tiled", "borrowed.Borrowed", "deferred.Late", "same_lengths.SameLengths"),
    *("choice_trie.ChoiceTrie", "byte_regex.ByteRegex", "schema_lite.SchemaLite", "template.Template"),
)
KINDS = {
    **dict.fromkeys(("watermarks", "repetition", "thinking", "hidden", "sampling", "alphabets", "pacing"), "modifier"),
    **dict.fromkeys(("tailfree", "ngramfade", "lexicon", "tournament", "scaffold"), "modifier"),
    **dict.fromkeys(("contrast", "echo", "meter", "steady"), "modifier"),
    **dict.fromkeys(("heat", "sections", "norepeat", "steer", "seal"), "modifier"),
    **dict.fromkeys(("regexes", "forms", "trie_choice", "ranges", "brackets", "lazyre"), "grammar"),
    **dict.fromkeys(("json_shapes", "near_words", "elements", "echoes"), "grammar"),
    **dict.fromkeys(("pooled_choices", "byte_automaton", "schema_writer", "tables", "tag_markup"), "grammar"),
    **dict.fromkeys(("choice_trie", "byte_regex", "schema_lite", "template"), "grammar"),
    **dict.fromkeys(("devices", "blocks", "torchlets", "plain"), "device"),
    **dict.fromkeys(("staged", "loops"), "device"),
    **dict.fromkeys(("tiles", "lanes", "pooled"), "device"),
    **dict.fromkeys(("blocked", "rowwise"), "attention"),
    **dict.fromkeys(("attentions", "online", "ragged", "groups", "chunks"), "attention"),
    **dict.fromkeys(("workers", "memguard", "adapter"), "worker"),
    **dict.fromkeys(("quotas", "ledger", "admission"), "hooks"),
    **dict.fromkeys(("sampling_fence", "replay_journal"), "hooks"),
    **dict.fromkeys(("finite_watch", "fakequant"), "worker"),
    **dict.fromkeys(("lexical", "prefer", "spans"), "workflow"),
    **dict.fromkeys(("tenant_limits", "audit_log"), "hooks"),
    **dict.fromkeys(("nan_watch", "few_bits"), "worker"),
    **dict.fromkeys(("cosines", "shelves"), "workflow"),
    **dict.fromkeys(("house_rules", "usage_ledger"), "hooks"),
    **dict.fromkeys(("finite_guard", "rescale"), "worker"),
    **dict.fromkeys(("sketch", "compare"), "workflow"),
    **dict.fromkeys(("fading", "greenlist", "allowance", "leash", "away"), "modifier"),
    **dict.fromkeys(("tiled", "borrowed", "deferred"), "device"),
    "same_lengths": "attention",
    **dict.fromkeys(("workflows", "similarity", "keywords", "signatures"), "workflow"),
}
AT_LEAST = 0.95
"""The share of the mistakes that have to be caught."""
OFTEN = ("fast-minus-one", "quotas-finish-first")
"""Mistakes that are tried every day."""


def source_of(plugin: str) -> str:
    """The text of the module that a plugin stands in."""
    return files("judged.plugins").joinpath(f"{plugin.partition('.')[0]}.py").read_text("utf-8")


def objection(mutant: Mutant, folder: Path) -> str | None:
    """The first check that has something to say against `mutant`, or None. The one that is known to catch it is asked
    first."""
    name = f"judged_{mutant.name.replace('-', '_')}"
    file = folder / f"{name}.py"
    file.write_text(source_of(mutant.plugin).replace(mutant.text, mutant.wrong), encoding="utf-8")
    module, _, qualname = mutant.plugin.partition(".")
    sys.path.insert(0, str(folder))
    try:
        target = Target(kind=KINDS[module], module=name, qualname=qualname, file=str(file))
        with Host(target) as host:
            planned = plan(target.kind, host.declared, host.traits, up_to=TIERS[-1])
            known = mutant.now or mutant.first
            for result in host.run(sorted(planned, key=lambda owed: owed.check != known), jobs=2):
                if result.outcome != "pass":
                    return result.obligation.check
    except CannotLoad:
        return "loading"
    finally:
        sys.path.remove(str(folder))
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_still_one(mutant: Mutant) -> None:
    assert source_of(mutant.plugin).count(mutant.text) == 1
    compile(source_of(mutant.plugin).replace(mutant.text, mutant.wrong), mutant.name, "exec")
    assert mutant.plugin in CORRECT
    known = {check.id for check in checks(KINDS[mutant.plugin.partition(".")[0]])}
    assert mutant.correct or mutant.survives or (mutant.now or mutant.first) in known
    assert mutant.correct or mutant.first or mutant.reason


def test_few_survive() -> None:
    wrong = [mutant for mutant in MUTANTS if not mutant.correct]
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert sum(not mutant.survives for mutant in wrong) >= AT_LEAST * len(wrong)


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", everyday(MUTANTS, *(m for m in MUTANTS if m.name in OFTEN)), ids=lambda m: m.name)
def test_a_mistake_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    found = objection(mutant, tmp_path)
    if found is None and not (mutant.survives or mutant.correct):  # a race does not show each time
        found = objection(mutant, tmp_path)
    assert (found is None) == (mutant.survives or mutant.correct), found


@pytest.mark.slow
@pytest.mark.parametrize("plugin", CORRECT)
def test_a_correct_plugin_is_certified(plugin: str) -> None:
    name, _, qualname = plugin.partition(".")
    module = import_module(f"judged.plugins.{name}")
    found = getattr(module, qualname)
    target = Target(kind=KINDS[name], module=module.__name__, qualname=qualname, file=str(module.__file__))
    report = run(Target.of_class(found) if isinstance(found, type) else target)
    assert report.verdict == "certified", [result for result in report.results if result.outcome != "pass"]
