from guideway.api import WorkerMixin, hookimpl


class Mixin(WorkerMixin):
    name = "wrongclass"


@hookimpl
def guideway_grammar_strategy():
    return Mixin
