"""The stories of the seeds, told again with real processes: what Holdfast concludes of each.

Every story is one ``holdfast serve`` with the defaults, but for patience where a comment says so;
its stand-ins are launched by it, or live in this process and are listed. What only a platform knows
(how full a filesystem is, which CUDA a host has) is reported as an agent would report it. The demo
of the second seed is here in short; ``test_demo.py`` has all of it.
"""

import asyncio
import contextlib
import re
import threading
import time
from random import Random

import uvloop

from holdfast.testing.standin import Like, Options, StandIn, fault

GB = 1_000_000_000
QUICK = ("--ttft-ms", "20", "--tpot-ms", "5", "--tokens", "10")


@contextlib.contextmanager
def listed(count, ailment=None, like=Like.VLLM):
    """The URLs of so many stand-ins, all in one thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin():
        made = []
        for _ in range(count):
            options = Options(like=like, ttft_ms=20.0, tpot_ms=5.0, tokens=10)
            made.append(await StandIn(options).start(port=0, side_port=None))
            if ailment is not None:
                made[-1].set_fault(ailment)
        return made

    async def end(made):
        for one in made:
            await one.stop()

    def do(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    made = []
    try:
        made = do(begin())
        yield [f"http://127.0.0.1:{one.port}" for one in made]
    finally:
        do(end(made))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def signs(rows):
    return {one["sign"] for one in rows}


# --- Parler: 1 GB reserved, nearly 4 GB needed ----------------------------------------------------


def parler(stories):
    """Loads, proves itself, and dies of the first request of any user, after each start."""
    deadly = ("--fault", "oom", "--fault-with", "marker=question")
    return {
        "name": "m",
        "engine": "vllm",
        "footprint": {"weights": "2.9GB", "gpu": False},
        "launch": {
            "replicas": 1,
            "memory": {"reservation": "1GB", "limit": "1GB"},
            "command": stories.stand_in(*QUICK, *deadly),
        },
        "queue": {"wait_no_replica_s": 30.0},
    }


def test_a_reservation_of_1_gb_for_4_gb_is_one_incident_and_the_queue_is_its_consequence(
    stories, tmp_path
):
    # A queue that grows is believed after a minute; a fifth of it will do for a test.
    queues = {"window_s": 12.0, "wait_s": 12.0}
    file = {"models": [parler(stories)], "incidents": {"detectors": {"queues": queues}}}

    def named():
        found = fleet.incidents()
        waits = {"queue_grows", "no_replica_ready"}
        whole = [one for one in found if waits & signs(one["consequences"])]
        return next((one for one in whole if "exit_137" in signs(_all(one))), None)

    async def main():
        async with stories.Traffic(fleet, 2.0, linger_s=0.1) as traffic:
            found = await asyncio.to_thread(fleet.until, named, "the queue is a consequence")
        return traffic, found

    with stories.story(tmp_path, file) as fleet:
        fleet.until(fleet.ready, "it is ready once")
        traffic, found = uvloop.run(main())
        # Who waits is told within two turns of the queue's patience; nobody was served meanwhile.
        assert traffic.slowest_s < 65, fleet.said()
        assert "200" not in traffic.outcomes()
        (only,) = fleet.incidents()
        assert (found["class"], found["cause"]) == ("runtime", "undersized"), fleet.said()
        assert only["id"] == found["id"]
        assert only["cause"] == "undersized"
        assert only["about"]["model"] == "m"
        assert "Memory reservation 1.0 GB, footprint 3.5 GB" in only["fix"], fleet.said()
        assert "set 4.0 GB" in only["fix"]
        ends = [one for one in fleet.events("m-1") if one["what"] == "dead"]
        assert len(ends) >= 2, fleet.said()  # it was started again, and died again


def _all(incident):
    return [*incident["evidence"], *incident["consequences"]]


# --- forty containers and one filesystem ----------------------------------------------------------


def test_forty_containers_on_one_filesystem_wait_for_bandwidth_not_for_operations(
    stories, tmp_path
):
    catalogue = ["small-1", "small-2", "small-3", "llm-1", "llm-2", "embed", "tts-1", "tts-2"]
    # The ceiling is believed when it holds for half a minute; a third of it will do for a test.
    contention = {"hold_s": 10.0, "rate_after_s": 8.0}

    # Some engines say on a page that they load; of others nobody hears before they have.
    silent = [f"http://127.0.0.1:{port}" for port in stories.free_ports(20, Random())]
    with listed(20, fault("load_stall"), like=Like.LLAMACPP) as loading:
        urls = [*loading, *silent]
        models = [
            {
                "name": name,
                "engine": "llamacpp" if at < 4 else "vllm",
                "filesystem": "efs",
                "footprint": {"weights": "10GB"},
                "endpoints": urls[5 * at : 5 * at + 5],
            }
            for at, name in enumerate(catalogue)
        ]
        file = {"models": models, "incidents": {"detectors": {"contention": contention}}}
        with stories.story(tmp_path, file) as fleet:
            names = fleet.until(lambda: sorted(fleet.rows()), "the fleet is known")
            assert len(names) == 40
            began = time.monotonic()

            def tell(**more):
                read = int(2.5e6 * (time.monotonic() - began))
                loads = [
                    {"kind": "PhaseSeen", "replica": name, "phase": "loading", "read_bytes": read}
                    | {"total_bytes": 10 * GB}
                    for name in names
                ]
                sight = {"kind": "FilesystemSeen", "filesystem": "efs", "readers": 40, **more}
                fleet.report(sight, *loads)

            def named():
                tell(read_bytes_s=100e6, permitted_bytes_s=104e6, operations_share=0.07)
                told = fleet.incidents()
                return told if told and both <= signs(_all(told[0])) else None

            # First every container lists its folder, and no data flows: that passes.
            tell(read_bytes_s=1e6, permitted_bytes_s=104e6, operations_share=1.0)
            both = {"filesystem_full_speed", "load_slow"}
            told = fleet.until(named, "the ceiling and the slow loads are told", look_s=1.0)
            assert len(told) == 1, fleet.said()
        (only,) = told
        assert (only["class"], only["cause"]) == ("loading", "cold_start_contention")
        assert only["about"]["filesystem"] == "efs"
        assert only["about"]["replica"] == ""
        said = next(one for one in only["evidence"] if one["sign"] == "filesystem_full_speed")
        assert "100.0 MB/s of 104.0 MB/s permitted" in said["text"]
        assert "operations at 7%" in said["text"]
        assert "filesystem_operations" not in signs(_all(only))
        assert "40 readers get 2.5 MB/s each" in only["fix"]


# --- CUDA 11.8 and 12.1 in one deployment ---------------------------------------------------------


def test_two_versions_of_cuda_in_one_deployment_are_found_before_any_answer_drifts(
    stories, tmp_path
):
    with listed(6) as urls:
        file = {"models": [{"name": "m", "engine": "vllm", "endpoints": urls}]}

        async def main():
            async with stories.Traffic(fleet, 10.0) as traffic:
                fleet.report(
                    *(
                        {"kind": "VersionsSeen", "replica": name, "cuda": cuda, "driver": driver}
                        for name, (cuda, driver) in zip(names, versions, strict=True)
                    )
                )
                found = await asyncio.to_thread(fleet.until, fleet.incidents, "skew is found")
            return traffic, found

        versions = [("11.8", "520.61")] * 4 + [("12.1", "530.30")] * 2
        with stories.story(tmp_path, file) as fleet:
            names = sorted(fleet.until(lambda: len(fleet.ready()) == 6 and fleet.ready(), "ready"))
            traffic, (only,) = uvloop.run(main())
            drifted = fleet.metric("holdfast_evidence_total", sign="output_drifted")
        assert set(traffic.outcomes()) == {"200"}
        assert (only["class"], only["cause"]) == ("runtime", "version_skew")
        assert only["about"]["model"] == "m"
        said = only["evidence"][0]["text"]
        assert re.search(r"cuda 12\.1 on m-[56], m-[56], 11\.8 on m-", said), said
        assert "2 of 6" in only["fix"]
        assert drifted is None


def test_one_node_that_is_updated_alone_is_named_and_the_bill_shows_it(stories, tmp_path):
    """All is well on one CUDA; then one host gets a routine update, and nobody announces it."""
    with listed(4) as urls:
        file = {"models": [{"name": "m", "engine": "vllm", "endpoints": urls}]}

        def versions(name, cuda, driver):
            return {"kind": "VersionsSeen", "replica": name, "cuda": cuda, "driver": driver}

        async def main():
            async with stories.Traffic(fleet, 10.0) as traffic:
                fleet.report(*(versions(name, "11.8", "520.61") for name in names))
                known = lambda: sum(row["cuda"] == "11.8" for row in fleet.versions()) == len(names)  # noqa: E731
                await asyncio.to_thread(fleet.until, known, "the bill has all versions")
                await asyncio.sleep(10)  # twice what versions have to settle
                before = fleet.incidents()
                fleet.report(versions(names[2], "12.1", "530.30"))
                found = await asyncio.to_thread(fleet.until, fleet.incidents, "the update is found")
            return traffic, before, found

        with stories.story(tmp_path, file) as fleet:
            names = sorted(fleet.until(lambda: len(fleet.ready()) == 4 and fleet.ready(), "ready"))
            traffic, before, (only,) = uvloop.run(main())
            odd = {row["replica"]: row["differs"] for row in fleet.versions()}
        assert set(traffic.outcomes()) == {"200"}
        assert before == []
        assert (only["class"], only["cause"]) == ("runtime", "version_skew")
        assert only["about"]["replica"] == names[2]
        assert f"cuda 12.1 on {names[2]}" in only["evidence"][0]["text"]
        assert odd == {name: [] for name in names} | {names[2]: ["cuda", "driver"]}


# --- the demo, in short ---------------------------------------------------------------------------


def test_nobody_hangs_when_a_replica_that_leaks_starves_behind_a_green_health_page(
    stories, tmp_path
):
    model = {
        "name": "m",
        "engine": "vllm",
        "launch": {"replicas": 3, "command": stories.stand_in(*QUICK)},
    }
    # Memory gone within a second: no trend could foresee it. The gateway has to hold by itself.
    leak = {"kind": "leak", "bytes_s": 100e6, "bytes_max": 100_000_000}

    async def main():
        async with stories.Traffic(fleet, 60.0) as traffic:
            await asyncio.sleep(8)  # deadlines are learned from two hundred answers of a kind
            sick = sorted(fleet.rows())[1]
            fleet.strike(sick, **leak)
            (found,) = await asyncio.to_thread(fleet.until, fleet.incidents, "it is named")
            gone = lambda: sick not in fleet.ready()  # noqa: E731
            await asyncio.to_thread(fleet.until, gone, "it gets no more work")
        return traffic, sick, found

    with stories.story(tmp_path, {"models": [model]}) as fleet:
        fleet.until(lambda: len(fleet.ready()) == 3, "every replica is ready")
        traffic, sick, found = uvloop.run(main())
        assert set(traffic.outcomes()) == {"200"}, fleet.said()
        assert traffic.slowest_s < 30, fleet.said()
        assert found["class"] == "runtime"
        assert found["replicas"] == [sick]
        assert found["cause"] in {"starved", "hung"}, fleet.said()
