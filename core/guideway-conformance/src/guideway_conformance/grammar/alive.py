"""Is there a strategy at all?"""

from __future__ import annotations

from guideway.api import CompiledGrammar, Matcher
from guideway.plugins.contract import check_returned

from guideway_conformance.grammar.session import legal
from guideway_conformance.grammar.subject import GrammarSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect


@check("grammar", tier="smoke")
def has_something_to_test(subject: GrammarSubject) -> None:
    """A strategy compiles a constraint of the suite or one of its `examples`."""
    tried = [sample.name for sample in subject.samples()]
    kinds = ", ".join(sorted(subject.component.kinds))
    expect(
        tried,
        f"for its kinds ({kinds}) the suite has no constraints: give the class `examples`, with texts each accepts",
    )
    expect(
        subject.few(most=1),
        f"it refuses every constraint of its kinds ({kinds}) the suite knows, such as {tried[0]}: give the class "
        "`examples` that it compiles",
    )


@check("grammar", tier="smoke")
def an_output_is_produced(subject: GrammarSubject) -> None:
    """A token of the mask is accepted, and a stop token where the output is complete terminates."""
    for case in subject.few(most=1):
        session = case.session()
        first = legal(session)
        expect(first, f"{case.name}: no token is legal at the start")
        session.take(first[:1])
        token_ids = case.output()
        expect(token_ids is not None, f"{case.name}: no output was found, neither those of the sample nor by chance")
        session = case.session().take([*(token_ids or ()), min(case.vocabulary.stop_token_ids)])
        expect(session.is_terminated(), f"{case.name}: is_terminated is false {session.place}")


@check("grammar")
def what_it_returns_can_be_called(subject: GrammarSubject) -> None:
    """Methods of its compiled grammars and matchers can be called as the contract's are, by position."""
    for case in subject.few(most=1):
        check_returned(case.compiled, CompiledGrammar)
        check_returned(case.compiled.matcher(case.vocabulary.stop_token_ids), Matcher)
