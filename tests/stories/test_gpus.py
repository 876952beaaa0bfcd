"""Stories of GPUs with real processes; what a driver would tell is reported from outside."""

import time

import pytest

from stories.test_seeds import listed

GB = 1_000_000_000
FREE = 20 * GB  # that the other tenants of the GPU leave
PER_S = 2.5 * GB / 60  # what the leaking one takes


def test_a_leak_of_gpu_memory_is_named_with_its_end_and_a_neighbours_memory_is_not(
    stories, tmp_path, record_property
):
    """Three replicas share a GPU: one leaks 2.5 GB a minute, one is idle, one took 5 GB at once."""
    with listed(3) as urls:
        file = {"models": [{"name": "m", "engine": "openai", "endpoints": urls}]}
        with stories.story(tmp_path, file) as fleet:
            names = sorted(fleet.until(lambda: len(fleet.ready()) == 3 and fleet.ready(), "ready"))
            leaking, quiet, greedy = names
            began = time.monotonic()

            def held():
                since = time.monotonic() - began
                taken = {quiet: 3 * GB, greedy: (8 if since > 60 else 3) * GB}
                return taken | {leaking: round(3 * GB + PER_S * since)}

            def left_s():
                return (FREE - sum(held().values()) + 9 * GB) / PER_S

            def tell():
                now = held()
                free = max(0, FREE + 9 * GB - sum(now.values()))
                facts = [
                    {"kind": "MemorySeen", "replica": name, "used_bytes": used, "device": "gpu"}
                    | {"limit_bytes": used + free, "requests": 1_000}
                    for name, used in now.items()
                ]
                fleet.report(*facts)
                return next((one for one in fleet.incidents() if one["cause"] == "leak"), None)

            found = fleet.until(tell, "the leak is named", within_s=400.0, look_s=2.0)
            took_s, really_s = time.monotonic() - began, left_s()
            assert found["about"]["replica"] == leaking, fleet.said()
            told = found["evidence"][0]["numbers"]["exhausted_in_s"]
            record_property("leak named after, s", round(took_s))
            record_property("full in, told and really, s", f"{told:.0f}, {really_s:.0f}")
            assert told == pytest.approx(really_s, rel=0.25)
            accused = {one["about"]["replica"] for one in fleet.incidents()}
            assert accused == {leaking}, fleet.said()


def test_a_gpu_that_is_slowed_by_heat_is_named_with_its_temperature(stories, tmp_path):
    # Two minutes of heat are believed; a tenth of it will do for a test.
    health = {"lasts_s": 12.0, "gap_s": 10.0}
    with listed(2) as urls:
        file = {
            "models": [{"name": "m", "engine": "vllm", "endpoints": urls}],
            "incidents": {"detectors": {"gpu_health": health}},
        }
        with stories.story(tmp_path, file) as fleet:
            names = sorted(fleet.until(lambda: len(fleet.ready()) == 2 and fleet.ready(), "ready"))

            def tell():
                fleet.report(
                    *(
                        {"kind": "GpuSeen", "host": f"n{at}", "gpu": "0", "replicas": [name]}
                        | {"temperature_c": 91.0 if at else 70.0, "temperature_max_c": 87.0}
                        | {"throttle": ["thermal"] if at else ["power cap"]}
                        for at, name in enumerate(names)
                    )
                )
                return fleet.incidents()

            (only,) = fleet.until(tell, "the heat is named", look_s=1.0)
            assert (only["cause"], only["replicas"]) == ("gpu_overheated", [names[1]])
            assert "91" in only["fix"], fleet.said()
