"""Which of several controls this machine is."""

import socket
from collections.abc import Mapping

from holdfast.config.processes.control import NAME_ENV


def own_name(environment: Mapping[str, str]) -> str:
    """The name of the control on this machine: as the environment says, or the host's."""
    return environment.get(NAME_ENV) or socket.gethostname()


__all__ = ["own_name"]
