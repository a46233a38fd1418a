from guideway.api import WorkerMixin, hookimpl


class Mixin(WorkerMixin):
    contract = "1.0"
    name = "wrongclass"


@hookimpl
def guideway_grammar_strategy():
    return Mixin
