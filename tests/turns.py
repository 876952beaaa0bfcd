"""Event loops without sockets, for what reads and writes in turns (``gateway.http.loop_turn``)."""


class AtOnce:
    """Its turns end as they begin; what goes wrong in them shows."""

    def call_soon(self, callback):
        callback()

    def call_exception_handler(self, context):
        raise context["exception"]


class Later:
    """Its turns end when the test says so."""

    def __init__(self):
        self.soon = []
        self.troubles = []

    def call_soon(self, callback):
        self.soon.append(callback)

    def call_exception_handler(self, context):
        self.troubles.append(context)

    def end_turn(self):
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()
