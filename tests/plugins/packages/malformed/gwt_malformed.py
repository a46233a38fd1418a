from guideway.api import WorkerMixin, hookimpl


class Mixin(WorkerMixin):
    contract = "1.0"
    name = "fine"


@hookimpl
def guideway_worker_mixin():
    return Mixin
