import asyncio
import threading
from types import SimpleNamespace

import pytest

from holdfast.control.incidents.gpu_watch import GpuWatch


class Driver:
    """One GPU that tells its memory and nothing else; ``hang`` stops every question."""

    NVML_ERROR_TIMEOUT = 10

    def __init__(self, count=1):
        self.count = count
        self.hang = threading.Event()  # while it is not set
        self.hang.set()
        self.looks = 0
        self.sets = 0

    def nvmlInit(self):
        assert self.hang.wait(20), "the test forgot to let go"

    def nvmlShutdown(self):
        pass

    def nvmlEventSetCreate(self):
        self.sets += 1
        return "set"

    def nvmlEventSetFree(self, _):
        self.sets -= 1

    def nvmlDeviceRegisterEvents(self, *_):
        pass

    def nvmlDeviceGetCount(self):
        self.looks += 1
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, _):
        return SimpleNamespace(used=3 << 30, total=80 << 30)


def watch(world, driver, scene, **more):
    async def main():
        found = GpuWatch(driver, period_s=0.01, absent_s=0.01, **more)
        task = asyncio.create_task(found.run())
        try:
            await scene(found)
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            driver.hang.set()

    asyncio.run(main())


def test_before_the_first_look_it_says_so():
    found = GpuWatch(Driver())
    assert found.report() == {"available": False, "reason": "not looked yet", "gpus": []}
    assert found.gauges() == {}


def test_what_a_gpu_tells_is_reported_and_the_rest_left_out(world):
    driver = Driver()

    async def scene(found):
        await world.until(lambda: found.report()["available"])
        (gpu,) = found.report()["gpus"]
        assert (gpu["uuid"], gpu["memory_total"], gpu["power_w"]) == ("GPU-0", 80 << 30, None)
        assert found.gauges() == {
            'gpu_memory_used_bytes{gpu="0"}': float(3 << 30),
            'gpu_memory_total_bytes{gpu="0"}': float(80 << 30),
        }
        looks = driver.looks
        await world.until(lambda: driver.looks > looks)

    watch(world, driver, scene)
    assert driver.sets == 0  # what was opened is closed


def test_without_a_gpu_it_says_why_and_looks_again(world):
    driver = Driver(count=0)

    async def scene(found):
        await world.until(lambda: "sees no GPU" in found.report()["reason"])
        assert found.gauges() == {}
        driver.count = 1
        await world.until(lambda: found.report()["available"])

    watch(world, driver, scene)


def test_a_driver_that_hangs_is_told_of_and_holds_up_neither_the_loop_nor_its_end(world):
    driver = Driver()

    async def scene(found):
        await world.until(lambda: found.report()["available"])
        driver.hang.clear()
        await world.until(lambda: "has not answered" in found.report()["reason"])
        assert not found.report()["available"]
        assert found.gauges() == {}

    watch(world, driver, scene, patience_s=0.05)  # ends while the driver still hangs


def test_a_driver_that_comes_back_is_believed_again(world):
    driver = Driver()

    async def scene(found):
        driver.hang.clear()
        await world.until(lambda: "has not answered" in found.report()["reason"])
        driver.hang.set()
        await world.until(lambda: found.report()["available"])

    watch(world, driver, scene, patience_s=0.05)


def test_faults_are_handed_out_once(world):
    driver = Driver()
    driver.queue = [SimpleNamespace(device=0, eventData=79)]

    def wait(*_):
        if not driver.queue:
            raise OSError("nothing happened")
        return driver.queue.pop()

    driver.nvmlEventSetWait_v2 = wait
    driver.nvmlDeviceGetIndex = lambda handle: handle
    taken = []

    async def scene(found):
        assert found.last is None or found.last.available
        await world.until(lambda: taken.extend(found.take_xids()) or taken)
        assert found.take_xids() == []
        await world.until(lambda: found.need_reset() == {0})

    watch(world, driver, scene)
    assert [(xid.code, xid.uuid, xid.needs_reset) for xid in taken] == [(79, "GPU-0", True)]
