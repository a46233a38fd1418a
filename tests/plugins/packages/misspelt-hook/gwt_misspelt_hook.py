from guideway.api import hookimpl


@hookimpl
def guideway_gramar_strategy(name):
    return None
