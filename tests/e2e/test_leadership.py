"""Two machines with a control each: the leader is killed, or frozen with an order on its way."""

import asyncio
import importlib
import sys

import pytest


@pytest.fixture(scope="module")
def bench(ops):
    return importlib.import_module("leadership")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("scene", ["kill", "freeze"])
def test_another_control_leads_no_request_is_harmed_and_no_late_order_counts(
    bench, tmp_path, scene
):
    async def main():
        with bench.machines(tmp_path) as pair:
            for cable in pair.cables:
                await cable.open()
            try:
                for machine in pair.machines.values():
                    machine.start()
                await pair.led()
                return await bench.play(pair, scene, 10.0)
            finally:
                for cable in pair.cables:
                    await cable.close()

    row = asyncio.run(main())
    assert (row["problem"], row["order_applied"], row["harms"]) == ("", False, [{}, {}])
    assert row["requests"] > 0
