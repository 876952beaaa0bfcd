import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from holdfast.sources import nvml
from holdfast.sources.nvml import XidWatch, main, read_gpus

TIMEOUT, NOT_SUPPORTED, LOST, UNKNOWN = 10, 3, 15, 999


class FakeError(Exception):
    """As the binding raises it: with a code as ``value``."""

    def __init__(self, value):
        super().__init__(f"code {value}")
        self.value = value


class FakeNvml:
    """A library of a few GPUs; ``errors`` says which call fails how, ``queue`` what happened."""

    NVML_ERROR_TIMEOUT = TIMEOUT
    NVML_ERROR_NOT_SUPPORTED = NOT_SUPPORTED
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_TEMPERATURE_GPU = 0
    NVML_VOLATILE_ECC = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    nvmlEventTypeXidCriticalError = 8  # noqa: N815 the library's own name

    def __init__(self, count=2, errors=(), queue=()):
        self.count = count
        self.errors = dict(errors)
        self.queue = list(queue)
        self.opened = 0
        self.sets = 0
        self.registered = []
        self.waits = []

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in object.__getattribute__(self, "errors"):
            error = object.__getattribute__(self, "errors")[name]

            def failing(*_):
                raise error

            return failing
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self):
        return "580.1"

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return 13_010

    def nvmlDeviceGetCount(self):
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):
        if ("handle", index) in self.errors:
            raise self.errors["handle", index]
        return f"handle-{index}"

    def nvmlDeviceGetIndex(self, handle):
        return int(handle[-1])

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle[-1]}"

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA Z9"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=100, free=60, used=40)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=25, memory=10)

    def nvmlDeviceGetTemperatureV(self, handle, sensor):
        return 41

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 42

    def nvmlDeviceGetPowerUsage(self, handle):
        return 70_500

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, since):
        return 7 if kind == self.NVML_MEMORY_ERROR_TYPE_CORRECTED else 0

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return 0x4

    def nvmlDeviceGetRemappedRows(self, handle):
        return [3, 1, 1, 0]

    def nvmlDeviceGetTemperatureThreshold(self, handle, which):
        return {1: 89, 3: 87}[which]

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 500_000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle):
        return 700_000

    def nvmlEventSetCreate(self):
        self.sets += 1
        return "set"

    def nvmlEventSetFree(self, events):
        self.sets -= 1

    def nvmlDeviceRegisterEvents(self, handle, kinds, events):
        if ("register", handle) in self.errors:
            raise self.errors["register", handle]
        self.registered.append((handle, kinds, events))

    def nvmlEventSetWait_v2(self, events, timeout_ms):
        self.waits.append(timeout_ms)
        if not self.queue:
            raise FakeError(TIMEOUT)
        index, code = self.queue.pop(0)
        return SimpleNamespace(device=f"handle-{index}", eventType=8, eventData=code)


# --- the report -----------------------------------------------------------------------------------


def test_all_that_gpus_tell_is_in_the_report():
    library = FakeNvml()
    report = read_gpus(library)
    assert (report.available, report.reason) == (True, "GPUs: 2")
    assert (report.driver, report.cuda) == ("580.1", "13.1")
    gpu = report.gpus[1]
    assert (gpu.index, gpu.uuid, gpu.name) == (1, "GPU-1", "NVIDIA Z9")
    assert (gpu.memory_used, gpu.memory_total, gpu.utilisation) == (40, 100, 0.25)
    assert (gpu.temperature_c, gpu.power_w) == (41, 70.5)
    assert (gpu.ecc_uncorrected, gpu.ecc_corrected) == (0, 7)
    assert (gpu.xid, gpu.problem) == ((), None)
    assert (gpu.throttle, gpu.remap_pending, gpu.remap_failed) == (("power cap",), True, False)
    assert (gpu.temperature_max_c, gpu.power_limit_w, gpu.power_default_w) == (87, 500.0, 700.0)
    assert library.opened == 0
    assert json.loads(json.dumps(report.as_dict()))["gpus"][0]["uuid"] == "GPU-0"


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("nvmlDeviceGetUUID", ["uuid"]),
        ("nvmlDeviceGetName", ["name"]),
        ("nvmlDeviceGetMemoryInfo", ["memory_used", "memory_total"]),
        ("nvmlDeviceGetUtilizationRates", ["utilisation"]),
        ("nvmlDeviceGetPowerUsage", ["power_w"]),
        ("nvmlDeviceGetTotalEccErrors", ["ecc_uncorrected", "ecc_corrected"]),
    ],
)
@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (FakeError(NOT_SUPPORTED), None),
        (FakeError(LOST), "code 15"),
        (OSError("no symbol"), "no symbol"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_a_question_that_fails_costs_its_own_answer_only(call, fields, error, problem):
    report = read_gpus(FakeNvml(errors={call: error}))
    assert report.available
    assert len(report.gpus) == 2
    known = {name for name, value in report.as_dict()["gpus"][0].items() if value is None}
    assert known - {"problem"} == set(fields)
    told = report.gpus[0].problem
    assert told is None if problem is None else problem in told


def test_an_older_driver_tells_its_temperature_the_older_way():
    library = FakeNvml(errors={"nvmlDeviceGetTemperatureV": FakeError(13)})
    assert read_gpus(library).gpus[0].temperature_c == 42
    library.errors["nvmlDeviceGetTemperature"] = FakeError(NOT_SUPPORTED)
    gpu = read_gpus(library).gpus[0]
    assert (gpu.temperature_c, gpu.problem) == (None, None)


def test_a_gpu_that_is_lost_does_not_hide_the_others():
    report = read_gpus(FakeNvml(errors={("handle", 0): FakeError(LOST)}))
    lost, well = report.gpus
    assert "code 15" in lost.problem
    assert (lost.index, lost.memory_used) == (0, None)
    assert well.memory_used == 40


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ({"nvmlInit": FakeError(9)}, "nvmlInit: code 9"),
        ({"nvmlDeviceGetCount": FakeError(UNKNOWN)}, "nvmlDeviceGetCount: code 999"),
    ],
)
def test_without_a_driver_the_report_says_so(errors, told):
    library = FakeNvml(errors=errors)
    report = read_gpus(library)
    assert (report.available, report.reason, report.gpus) == (False, told, ())
    assert library.opened == 0


def test_a_driver_without_gpus_is_told():
    report = read_gpus(FakeNvml(count=0))
    assert (report.available, report.reason) == (False, "the driver sees no GPU")
    assert report.driver == "580.1"


def test_versions_that_nobody_tells_are_unknown():
    silent = {
        name: FakeError(UNKNOWN)
        for name in ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
    }
    report = read_gpus(FakeNvml(errors=silent))
    assert (report.available, report.driver, report.cuda) == (True, None, None)


def test_a_driver_that_counts_wildly_is_not_believed():
    assert len(read_gpus(FakeNvml(count=10**9)).gpus) == nvml.GPUS_MAX


def test_an_absent_package_is_told(monkeypatch):
    monkeypatch.setattr(nvml, "_PACKAGE", "a_package_that_nobody_wrote")
    report = read_gpus()
    assert not report.available
    assert "nvidia-ml-py is not installed" in report.reason
    watch = XidWatch()
    assert not watch.start()
    assert "not installed" in watch.reason


def test_a_package_that_does_not_load_is_told(monkeypatch, tmp_path):
    (tmp_path / "broken_nvml.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(nvml, "_PACKAGE", "broken_nvml")
    assert read_gpus().reason == "the package nvidia-ml-py does not load (ZeroDivisionError)"


# --- Xid events -----------------------------------------------------------------------------------


def test_faults_are_heard_and_stand_in_the_report():
    library = FakeNvml(queue=[(1, 79), (0, 31), (1, 4242)])
    watch = XidWatch(library, clock=lambda: 5.0)
    assert watch.reason == "not started"
    assert watch.poll() == []
    assert watch.start()
    assert watch.start()
    assert library.registered == [("handle-0", 8, "set"), ("handle-1", 8, "set")]
    assert watch.reason == "listening to 2 of 2 GPUs"
    fallen, touched, unknown = watch.poll(50)
    assert library.waits == [50, 0, 0, 0]
    assert (fallen.at, fallen.index, fallen.uuid, fallen.code) == (5.0, 1, "GPU-1", 79)
    assert fallen.needs_reset
    assert "bus" in fallen.meaning
    assert not touched.needs_reset
    assert "without a known meaning" in unknown.meaning
    assert watch.poll() == []
    assert (watch.seen, watch.polls_failed) == (3, 0)
    report = read_gpus(library, watch)
    assert [xid.code for xid in report.gpus[1].xid] == [79, 4242]
    watch.close()
    watch.close()
    assert (library.opened, library.sets, watch.listening) == (0, 0, False)
    assert [xid.code for xid in watch.recent("GPU-0")] == [31]


def test_a_gpu_that_repeats_itself_fills_no_memory():
    library = FakeNvml(count=1, queue=[(0, 74)] * 1_000)
    watch = XidWatch(library)
    watch.start()
    assert len(watch.poll()) == nvml.XIDS_PER_POLL_MAX
    assert len(watch.recent("GPU-0")) == nvml.XIDS_KEPT
    watch.close()


def test_a_wait_that_fails_is_counted_and_asked_again():
    library = FakeNvml(errors={"nvmlEventSetWait_v2": FakeError(LOST)})
    watch = XidWatch(library)
    watch.start()
    assert watch.poll() == []
    assert (watch.polls_failed, watch.reason) == (1, "nvmlEventSetWait_v2: code 15")
    library.errors.clear()
    library.queue.append((0, 48))
    assert [xid.code for xid in watch.poll()] == [48]
    watch.close()


def test_a_fault_of_a_gpu_that_answers_nothing_more_is_still_heard():
    lost = {"nvmlDeviceGetUUID": FakeError(LOST), "nvmlDeviceGetIndex": FakeError(LOST)}
    watch = XidWatch(FakeNvml(queue=[(0, 79)], errors=lost))
    watch.start()
    (xid,) = watch.poll()
    assert (xid.uuid, xid.index, xid.code) == (None, None, 79)
    assert watch.recent(None) == (xid,)
    watch.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"errors": {"nvmlInit": FakeError(9)}}, "nvmlInit: code 9"),
        ({"errors": {"nvmlEventSetCreate": FakeError(NOT_SUPPORTED)}}, "code 3"),
        ({"errors": {"nvmlDeviceRegisterEvents": FakeError(NOT_SUPPORTED)}}, "code 3"),
        ({"errors": {"nvmlDeviceGetHandleByIndex": FakeError(LOST)}}, "code 15"),
        ({"count": 0}, "the driver sees no GPU"),
    ],
)
def test_a_watch_that_cannot_listen_says_why_and_leaves_nothing_open(options, told):
    library = FakeNvml(**options)
    watch = XidWatch(library)
    assert not watch.start()
    assert told in watch.reason
    assert (library.opened, library.sets, watch.poll()) == (0, 0, [])
    watch.close()


def test_one_gpu_that_cannot_be_heard_does_not_silence_the_others():
    library = FakeNvml(errors={("register", "handle-0"): FakeError(NOT_SUPPORTED)})
    watch = XidWatch(library)
    assert watch.start()
    assert watch.reason == "listening to 1 of 2 GPUs"
    watch.close()


# --- by hand --------------------------------------------------------------------------------------


def test_the_report_is_printed_as_json(capsys):
    assert main(FakeNvml(queue=[(0, 31)])) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["gpus"][0]["xid"][0]["code"] == 31
    assert (told["xids_heard"], told["xid_watch"]) == (1, "listening to 2 of 2 GPUs")


def test_the_real_library_or_its_absence_is_told_without_a_traceback():
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast.sources.nvml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = json.loads(ran.stdout)
    assert ran.returncode == (0 if told["available"] else 1)
    assert told["reason"]
    assert "Traceback" not in ran.stderr


def test_who_computes_on_a_gpu_is_told_as_far_as_the_driver_knows():
    library = FakeNvml(count=1)
    told = [SimpleNamespace(pid=7, usedGpuMemory=5), SimpleNamespace(pid=8), SimpleNamespace()]
    library.nvmlDeviceGetComputeRunningProcesses = lambda _handle: told
    assert read_gpus(library).gpus[0].processes == ((7, 5), (8, None))
    assert read_gpus(FakeNvml(count=1)).gpus[0].processes == ()
