"""Long simulations run in processes of their own: on all cores, and without coverage's tracer."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

Spread = Callable[..., list[Any]]
"""``spread(task, [arguments, …])``: the results of ``task(*arguments)``, in order."""


@pytest.fixture(scope="session")
def spread(pytestconfig: pytest.Config) -> Iterator[Spread]:
    root = str(pytestconfig.rootpath)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [root, *sys.path])  # the processes import the task by name
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:

            def run(task: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> list[Any]:
                waiting = [pool.submit(task, *arguments) for arguments in calls]
                return [future.result() for future in waiting]

            yield run
