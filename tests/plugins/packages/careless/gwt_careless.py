from guideway.api import GrammarStrategy, Support, UnsupportedGrammar, hookimpl


class Base(GrammarStrategy):
    contract = "1.0"

    def supports(self, constraint):
        return Support(reason="a test plugin compiles nothing")

    def compile(self, constraint):
        raise UnsupportedGrammar("a test plugin compiles nothing", feature="regex")


class Misnamed(Base):
    name = "something-else"
    kinds = frozenset({"regex"})


class Unkind(Base):
    name = "unkind"  # and no kinds


class Untyped(Base):
    name = "untyped"
    kinds = frozenset({"regex"})
    contract = 1.0


class OldMajor(Base):
    name = "old-major"
    kinds = frozenset({"regex"})
    contract = "0.0"


@hookimpl
def guideway_grammar_strategy(name):
    return {
        "misnamed": Misnamed,
        "unkind": Unkind,
        "untyped": Untyped,
        "old-major": OldMajor,
        "instance": "not a class",
    }.get(name)  # and nothing for "none"
