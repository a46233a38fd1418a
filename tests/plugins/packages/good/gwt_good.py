import os

from guideway.api import GrammarStrategy, Support, UnsupportedGrammar, hookimpl

print("gwt_good is being imported", flush=True)  # a plugin may be noisy
if "GWT_MARKER" in os.environ:
    with open(os.environ["GWT_MARKER"], "a") as marker:
        marker.write("gwt_good\n")


class Good(GrammarStrategy):
    contract = "1.0"
    name = "good"
    kinds = frozenset({"regex"})

    def supports(self, constraint):
        return Support(reason="a test plugin compiles nothing")

    def compile(self, constraint):
        raise UnsupportedGrammar("a test plugin compiles nothing", feature="regex")


class Better(Good):
    name = "better"


class plugin:
    @staticmethod
    @hookimpl
    def guideway_grammar_strategy(name):
        return {"better": Better}.get(name)


@hookimpl
def guideway_grammar_strategy(name):
    return {"good": Good}.get(name)


def main():
    print("a plugin may bring a program of its own")
