"""A stand-in with a known law, and a client whose limits forgive a machine that stalls."""

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager

import pytest
import uvloop

from holdfast.loadtest.client_check import ClientLimits
from holdfast.loadtest.load_run import LoadClient, StepLoad
from holdfast.loadtest.request_plan import BodyForm, RequestPlan
from holdfast.sim.workload import Lengths, Workload
from holdfast.testing.standin import Options, StandIn

FORGIVING = ClientLimits(cpu_share_max=1.0, late_s_max=600.0)
TTFT_S, TPOT_S, TOKENS = 0.02, 0.002, 10


class LoadStage:
    """What tests of the client need: a stand-in, loads, and a way to run them."""

    forgiving = FORGIVING
    ttft_s, tpot_s, tokens = TTFT_S, TPOT_S, TOKENS

    @staticmethod
    def run(work):
        return uvloop.run(work)

    @staticmethod
    @asynccontextmanager
    async def standin(**options):
        law = {"ttft_ms": TTFT_S * 1000, "tpot_ms": TPOT_S * 1000, "tokens": TOKENS}
        made = await StandIn(Options(**{**law, **options})).start()
        try:
            yield made
        finally:
            await made.stop()

    @staticmethod
    def plan(rate=50.0, tokens=TOKENS, **more):
        workload = Workload(rate=rate, prompt=Lengths(20, 0.0), output=Lengths(tokens, 0.0), **more)
        return RequestPlan(workload, BodyForm("m"))

    @classmethod
    async def hold(cls, url, plan=None, *, limits=FORGIVING, on_progress=None, **load):
        """Hold one load; returns the step and its records."""
        client = LoadClient(url, limits=limits, on_progress=on_progress or (lambda _: None))
        try:
            wanted = {"name": "load", "warmup_s": 0.0, "seconds": 0.5, **load}
            return await client.hold(StepLoad(**wanted), plan or cls.plan(), 0)
        finally:
            client.close()

    @staticmethod
    @contextmanager
    def served(make):
        """A server in a thread of its own, for commands that run their own event loop."""
        ready, over = threading.Event(), None
        found = {}

        async def main():
            nonlocal over
            over = asyncio.Event()
            found["loop"] = asyncio.get_running_loop()
            async with make() as server:
                found["server"] = server
                ready.set()
                await over.wait()

        thread = threading.Thread(target=lambda: uvloop.run(main()), daemon=True)
        thread.start()
        assert ready.wait(60)
        try:
            yield found["server"]
        finally:
            found["loop"].call_soon_threadsafe(over.set)
            thread.join(60)


@pytest.fixture(scope="session")
def stage():
    return LoadStage
