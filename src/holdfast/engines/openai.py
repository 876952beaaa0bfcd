"""Dialect of any server with the OpenAI API of which nothing else is known.

Only what the API itself promises: no health page, no metrics, no way to continue a chat answer. Its
list of models is no health page either: a proxy may not have it, and answer every chat. It is read
while a process of ours starts, and does not decide there either. ``/v1/completions`` takes a plain
prompt, so a longer one goes on. How it is started is not known either: that takes a command of the
user's own.
"""

from typing import Final

from holdfast.engines.dialect import Dialect
from holdfast.engines.prometheus import nothing_told

DIALECT: Final = Dialect(
    name="openai",
    health_path=None,
    start_path="/v1/models",
    metrics_path=None,
    read_load=nothing_told,
)

__all__ = ["DIALECT"]
