"""The errors of durable queues: whose fault, and whether to try again."""


# QueueError
#  ├─ ItemRefusedError          the caller's item or argument; it will never be accepted as it is
#  ├─ QueueFullError            no room on disk or in memory; accepted again when there is room
#  ├─ QueueUnavailableError     not reachable, locked or starting; the call may have happened
#  └─ QueueUnsupportedError     this kind of queue cannot do that, or must not be used at all


class QueueError(Exception):
    """A queue could not do what was asked; the text says why and what to do."""


class ItemRefusedError(QueueError):
    """An item or an argument is not acceptable: which field, what is wrong, what to use."""


class QueueFullError(QueueError):
    """The queue has no room for new items; nothing was added, all that was there stays."""


class QueueUnavailableError(QueueError):
    """The queue's server or file is not usable just now; the call may or may not have happened."""


class QueueUnsupportedError(QueueError):
    """This kind of queue cannot do what was asked, or this server would lose items."""


__all__ = [
    "ItemRefusedError",
    "QueueError",
    "QueueFullError",
    "QueueUnavailableError",
    "QueueUnsupportedError",
]
