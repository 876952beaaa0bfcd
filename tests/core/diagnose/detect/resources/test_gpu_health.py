"""GPUs that are hot, slowed or damaged, and those that only look so for a moment."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.core.diagnose.detect.resources.gpu_health import GpuHealthConfig, GpuHealthDetector
from holdfast.core.diagnose.evidence import REPORTED, Remedy, Sign
from holdfast.core.diagnose.facts import Declared, GpuSeen, Looked
from holdfast.core.diagnose.investigation import CallCanaries, Investigation
from holdfast.core.diagnose.remedy_policy import Act
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Cause
from holdfast.core.gpu import HARDWARE, POWER_BRAKE, POWER_CAP, THERMAL
from holdfast.core.types import ConfigError, nanos
from holdfast.core.view.reading_diff import gpu_seen
from holdfast.sources.gpu_devices import devices_of
from holdfast.sources.nvml import read_gpus
from holdfast.testing.nvml_replay import ReplayedNvml

ROOT = Path(__file__).parents[5]
H200 = ROOT / "tests/sources/nvml_h200.json.gz"
WELL = GpuSeen(
    "n1",
    "GPU-a",
    "GPU 0",
    ("m-1",),
    temperature_c=60.0,
    temperature_max_c=87.0,
    ecc_uncorrected=0,
    remap_pending=False,
    throttle=(),
)


class Watch:
    def __init__(self, **config):
        self.census = ReplicaRegistry()
        self.census.take(Declared("m-1", "m", host="n1"))
        self.detector = GpuHealthDetector(GpuHealthConfig(**config), self.census)
        self.now = 1_000.0

    def see(self, *facts, every=10.0, times=1):
        found = []
        for fact in facts * times:
            self.now += every
            found += self.detector.take(fact, nanos(self.now))
        return found


def signs(found):
    return [one.sign for one in found]


# --- must fire ------------------------------------------------------------------------------------


def test_heat_that_lasts_is_a_sign_with_its_figures():
    watch = Watch()
    found = watch.see(replace(WELL, temperature_c=88.0), times=13)
    assert signs(found) == [Sign.GPU_HOT]
    assert found[0].about.replica == "m-1"
    assert found[0].numbers == {"temperature_c": 88.0, "lasted_s": 120.0}
    assert found[0].text == "GPU 0 has been at 88 °C and more for 120 s"
    assert len(watch.see(replace(WELL, temperature_c=88.0), times=6)) == 2  # while it holds


def test_a_board_that_tells_no_bound_has_that_of_the_config():
    hot = replace(WELL, temperature_c=85.0, temperature_max_c=None)
    assert signs(Watch().see(hot, times=13)) == [Sign.GPU_HOT]
    assert Watch(hot_c=86.0).see(hot, times=30) == []


@pytest.mark.parametrize("reason", [THERMAL, POWER_BRAKE, HARDWARE])
def test_a_slowdown_that_lasts_is_a_sign(reason):
    found = Watch().see(replace(WELL, throttle=(reason, POWER_CAP)), times=13)
    assert signs(found) == [Sign.GPU_THROTTLED]
    assert found[0].text == f"GPU 0 has been slowed for 120 s: {reason}"


def test_a_slowdown_that_is_missing_at_one_look_in_ten_lasts():
    slow = replace(WELL, throttle=(THERMAL,))
    assert Sign.GPU_THROTTLED in signs(Watch().see(*[slow] * 9, WELL, times=3))


def test_a_lowered_power_limit_is_a_sign_while_it_limits():
    lowered = replace(WELL, power_limit_w=450.0, power_default_w=700.0)
    assert Watch().see(lowered, times=30) == []  # nothing asks for more
    found = Watch().see(replace(lowered, throttle=(POWER_CAP,)), times=13)
    assert signs(found) == [Sign.GPU_POWER_LIMITED]
    assert (found[0].numbers["limit_w"], found[0].numbers["default_w"]) == (450.0, 700.0)


def test_one_more_uncorrected_error_is_a_sign_at_once():
    watch = Watch()
    assert watch.see(WELL) == []
    (one,) = watch.see(replace(WELL, ecc_uncorrected=2))
    assert (one.sign, one.numbers) == (Sign.GPU_MEMORY_ERRORS, {"errors": 2.0})
    assert watch.see(replace(WELL, ecc_uncorrected=2), times=30) == []


def test_rows_of_bad_memory_are_signs_until_they_are_replaced():
    watch = Watch()
    (due,) = watch.see(replace(WELL, remap_pending=True))
    assert due.sign is Sign.GPU_RESET_DUE
    assert len(watch.see(replace(WELL, remap_pending=True), times=9)) == 3
    (gone,) = watch.see(replace(WELL, remap_pending=True, remap_failed=True))
    assert gone.sign is Sign.GPU_ROWS_EXHAUSTED


def test_a_gpu_without_a_known_replica_is_its_hosts():
    (one,) = Watch().see(replace(WELL, replicas=("nobody",), remap_pending=True))
    assert (one.about.host, one.about.replica) == ("n1", "")


# --- must not fire --------------------------------------------------------------------------------


def test_85_degrees_for_a_moment_is_nothing():
    watch = Watch()
    hot = replace(WELL, temperature_c=88.0)
    assert watch.see(*[WELL] * 6, hot, *[WELL] * 6, times=10) == []
    assert watch.see(hot, times=8) == []  # 80 s


def test_85_degrees_below_the_boards_own_bound_is_nothing():
    assert Watch().see(replace(WELL, temperature_c=85.0), times=60) == []


def test_corrected_errors_and_those_of_before_are_nothing():
    watch = Watch()
    assert watch.see(replace(WELL, ecc_uncorrected=5), times=30) == []
    assert watch.see(replace(WELL, ecc_uncorrected=0), times=3) == []  # the driver was loaded anew


def test_what_nobody_looked_at_did_not_last():
    hot = replace(WELL, temperature_c=88.0)
    assert Watch().see(hot, times=30, every=100.0) == []


def test_unknown_is_neither_hot_nor_slowed():
    blank = GpuSeen("n1", "GPU-a", "GPU 0", ("m-1",))
    assert Watch().see(blank, times=60) == []


def test_a_real_h200_is_well_at_work_and_at_rest():
    """Recorded: idle, a neighbour that takes 14 GiB, 24 s at 690 of 700 W, one long kernel."""
    nvml = ReplayedNvml.read(H200)
    watch = Watch(lasts_s=10.0)
    for place in range(len(nvml.samples)):
        (device,) = devices_of(read_gpus(nvml.at(place)))
        assert watch.see(gpu_seen("n1", device, ("m-1",)), every=1.0) == []


# --- what follows ---------------------------------------------------------------------------------


def tell(investigation, fact, at):
    found = investigation.take(fact, nanos(at))
    return found + investigation.take(Looked(), nanos(at + 0.5))


@pytest.fixture
def fleet():
    made = Investigation()
    for name in ("m-1", "m-2", "m-3", "m-4"):
        made.take(Declared(name, "m", host=name.replace("m", "n"), managed=True), nanos(900))
    return made


def test_a_hot_gpu_is_one_incident_for_people(fleet):
    for at in range(1_000, 1_200, 10):
        tell(fleet, replace(WELL, host="n-1", temperature_c=88.0, throttle=(THERMAL,)), at)
    (incident,) = fleet.incidents.values()
    assert (incident.cause, incident.remedy) == (Cause.GPU_OVERHEATED, Remedy.PAGE)
    assert "at 88 °C" in incident.fix


@pytest.mark.parametrize("reporter", ["", "agent a"])
def test_new_memory_errors_move_the_replica_unless_an_agent_alone_says_so(fleet, reporter):
    told = replace(WELL, host="n-1", reporter=reporter)
    tell(fleet, told, 1_000)
    found = tell(fleet, replace(told, ecc_uncorrected=1), 1_010)
    (incident,) = fleet.incidents.values()
    assert incident.cause is Cause.GPU_FAULT
    acts = [one for one in found if isinstance(one, Act) and one.remedy is not Remedy.PAGE]
    asked = [one.replicas for one in found if isinstance(one, CallCanaries)]
    if reporter:
        assert (acts, asked) == ([], [("m-1",)])
        assert incident.evidence[0].source == REPORTED
    else:
        assert [one.replica for one in acts] == ["m-1"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("hot_c", 20), ("lasts_s", 0), ("gap_s", -1), ("share", 0), ("lowered", 1.5)],
)
def test_settings_are_checked(field, value):
    with pytest.raises(ConfigError, match=f"gpu_health.{field}"):
        GpuHealthConfig(**{field: value})
