from guideway.api import hookimpl


@hookimpl
def guideway_grammar_strategy(nmae):
    return None
