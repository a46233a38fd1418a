import os

from guideway.api import WorkerMixin, hookimpl

if "GWT_MARKER" in os.environ:
    with open(os.environ["GWT_MARKER"], "a") as marker:
        marker.write("gwt_good_worker\n")


class Mixin(WorkerMixin):
    contract = "1.0"
    name = "good"


@hookimpl
def guideway_worker_mixin():  # one component: no need for its name
    return Mixin
