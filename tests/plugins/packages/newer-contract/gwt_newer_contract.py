from guideway.api import GrammarStrategy, Support, UnsupportedGrammar, hookimpl


class Strategy(GrammarStrategy):
    name = "newer"
    kinds = frozenset({"regex"})
    contract = "1.99"

    def supports(self, constraint):
        return Support(reason="a test plugin compiles nothing")

    def compile(self, constraint):
        raise UnsupportedGrammar("a test plugin compiles nothing", feature="regex")


@hookimpl
def guideway_grammar_strategy():
    return Strategy
