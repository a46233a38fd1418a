from guideway.api import WorkerMixin, hookimpl


class Mixin(WorkerMixin):
    name = "twice"
    origin = "one"


@hookimpl
def guideway_worker_mixin():
    return Mixin
