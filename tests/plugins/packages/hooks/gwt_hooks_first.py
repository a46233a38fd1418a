"""Say hello. The rest is not shown."""

from guideway.api import InvalidRequest, hookimpl

heard = []


@hookimpl
def guideway_validate_request(request):  # omits arguments
    heard.append("first")
    if request == "bad":
        raise InvalidRequest("first refuses it")


@hookimpl
def guideway_request_finished(result, request):
    heard.append((request, result))


def add_hello(app):
    hello = app.add_parser("hello", help="say hello")
    hello.add_argument("--name", default="world")
    hello.set_defaults(run=say_hello)


def say_hello(args):
    print(f"hello {args.name}")
    return 7
