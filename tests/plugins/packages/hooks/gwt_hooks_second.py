from guideway.api import hookimpl

heard = []


@hookimpl
def guideway_validate_request(request, context):
    heard.append("second")


class eager:
    @staticmethod
    @hookimpl(tryfirst=True)
    def guideway_validate_request(request, context):
        heard.append("eager")


class wrapper:
    @staticmethod
    @hookimpl(wrapper=True)
    def guideway_validate_request(request, context):
        return (yield)


class empty:
    pass
