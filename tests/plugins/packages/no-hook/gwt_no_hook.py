def guideway_grammar_strategy(name):
    return None
