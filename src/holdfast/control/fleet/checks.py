"""Loads the users' own checks: functions named in the fleet file that judge a canary's answer.

They are imported when a file is read, so that a wrong name is refused with the file, and not
discovered by a replica that never gets ready. They run in a thread: users' code must not block the
loop that watches all replicas.
"""

from collections.abc import Callable
from importlib import import_module

from holdfast.core.types import ConfigError

Check = Callable[[int, bytes], bool | str]


def load_check(name: str) -> Check:
    """Import a user's canary check named ``package.module:function`` and return the callable.

    Importing runs the module's code; any failure raises a ``ConfigError`` that says what is wrong.
    """
    module, _, attribute = name.partition(":")
    fix = "name an importable package.module:function"
    try:
        found = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # importing runs the user's own code
        told = f"is {name!r}, which cannot be imported ({type(error).__name__})"
        raise ConfigError("canary.check", told, fix) from error
    if not callable(found):
        raise ConfigError("canary.check", f"is {name!r}, which is no function", fix)
    check: Check = found
    return check


__all__ = ["Check", "load_check"]
