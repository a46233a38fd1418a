from guideway.api import GrammarStrategy, hookimpl


class Strategy(GrammarStrategy):
    contract = "1.0"
    name = "abstract"
    kinds = frozenset({"regex"})

    def supports(self, constraint):
        raise NotImplementedError


@hookimpl
def guideway_grammar_strategy():
    return Strategy
