from guideway.api import WorkerMixin, hookimpl


class Mixin(WorkerMixin):
    name = "fine"


@hookimpl
def guideway_worker_mixin():
    return Mixin
