"""The agent's process: ``python -m holdfast.agent SETTINGS``, which ``holdfast agent`` executes.

The command line reads and checks its options, and is then replaced by this process, which needs
none of the libraries that reading fleet files takes: that halves the memory used for as long as the
host is up.
"""

import os
import signal
import sys

import msgspec

from holdfast.agent import Agent
from holdfast.agent.settings import AgentConfig, CurrentToken
from holdfast.agent.stop_signal import StopSignal
from holdfast.core.types import ConfigError


def main(arguments: list[str]) -> int:
    """Run the agent until SIGTERM or SIGINT; with ``once`` as first argument, report once."""
    once = arguments[:1] == ["once"]
    config = msgspec.json.decode(arguments[-1], type=AgentConfig)
    try:
        agent = Agent(config, CurrentToken(os.environ), _say)
    except ConfigError as error:
        _say(str(error))
        return 2
    if once:
        problem = agent.once()
        _say(problem or f"{config.url} has taken the report of {config.name}")
        return 1 if problem else 0
    ending = StopSignal()

    def end(*_: object) -> None:
        ending.set()
        agent.hurry()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    _say(f"reporting as {config.name} to {config.url} every {config.local.period_s:g} s")
    agent.run(ending)
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"holdfast agent: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
