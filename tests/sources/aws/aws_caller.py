"""A caller whose answers are functions of the test; nothing leaves the process."""

from holdfast.sources.aws.errors import CallError, CallFailure


class FakeCaller:
    """``answers`` has a function for each operation; what was asked is kept."""

    service = "fake"

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []
        self.notes = []

    def ask(self, name, **arguments):
        self.asked.append((name, arguments))
        return self.answers[name](**arguments)

    def items(self, name, key, **arguments):
        arguments.pop("PaginationConfig", None)
        return iter(self.ask(name, **arguments)[key])

    def note(self, text):
        self.notes.append(text)

    def count(self, name):
        return sum(one == name for one, _ in self.asked)


class Clock:
    """Time that a test moves."""

    def __init__(self, now=1_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


def denied(*_, **__):
    raise CallError("fake:Do is not allowed", CallFailure.DENIED)


def missing(*_, **__):
    raise CallError("gone", CallFailure.MISSING)


def unreachable(*_, **__):
    raise CallError("the endpoint does not answer", CallFailure.UNREACHABLE)
