import orjson
import pytest

from holdfast.core.diagnose.facts import Mark
from holdfast.core.gpu import GpuDevice, use_of
from holdfast.core.view.layers import Disk, Host, Part, Placed, Reading
from holdfast.sources.agent_report import (
    ROWS_MAX,
    THINGS_MAX,
    AgentReport,
    AgentStatus,
    BadAgentReportError,
    ReportedGpuFault,
    ReportedLine,
    ReportedPhase,
    decode,
    encode,
)


def reading(**rows):
    return Reading("gpu-1", "agent", 100.0, **rows)


def report(**more):
    return AgentReport("life", 100.0, 5.0, more.pop("reading", reading()), **more)


def test_a_report_arrives_as_it_was_sent():
    sent = report(
        reading=reading(
            parts=(Part("host", 99.0),),
            hosts=(Host("gpu-1", cpus=8, pressure=0.5),),
            placed=(Placed("r@1", "m", "stopped", exit_code=-9, oom=True),),
            disks=(Disk("filer:/m", read_bytes_s=1.5),),
            notes=("a note",),
        ),
        lines=(ReportedLine(1, 0.5, "r", Mark.KV_EXHAUSTED, "h:1"),),
        phases=(ReportedPhase(2, 0, "r", "loading"),),
        faults=(ReportedGpuFault(3, 0, "r", 79, fatal=True),),
        own=AgentStatus("1.0", 1000, 0.001, 2, 3),
        leaving=True,
    )
    assert decode(encode(sent)) == sent


def gpu_report(**figures):
    device = GpuDevice("GPU-a", 0, "H200", memory_used_bytes=5, memory_total_bytes=9, **figures)
    placed = Placed("r@1", "m", "running", gpu=use_of((device,), (4,)), devices=("GPU-a",))
    return report(reading=reading(hosts=(Host("gpu-1", devices=(device,)),), placed=(placed,)))


def test_figures_of_gpus_arrive_as_they_were_sent():
    sent = gpu_report(temperature_c=60, throttle=("thermal",), remap_pending=False)
    assert decode(encode(sent)) == sent


@pytest.mark.parametrize(
    ("figures", "field"),
    [
        ({"temperature_c": -300.0}, "hosts[0].devices.temperature_c"),
        ({"power_w": 1e30}, "hosts[0].devices.power_w"),
        ({"throttle": ("x" * 300,)}, "hosts[0].devices.throttle"),
        ({"throttle": ("x",) * 300}, "hosts[0].devices.throttle"),
    ],
)
def test_impossible_figures_of_gpus_are_refused_with_their_name(figures, field):
    with pytest.raises(BadAgentReportError) as refused:
        decode(encode(gpu_report(**figures)))
    assert field in str(refused.value)


def plain(**more):
    return orjson.loads(encode(report())) | more


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"life": ""}, "$.life"),
        ({"at": "noon"}, "$.at"),
        ({"at": -1}, "$.at"),
        ({"period_s": 0}, "$.period_s"),
        ({"reading": 3}, "$.reading"),
        ({"reading": {"source": "x", "kind": "agent"}}, "$.reading"),
        ({"lines": [{"number": 1, "age_s": 0, "replica": "r", "mark": "boom"}]}, "$.lines[0].mark"),
        ({"lines": [{"number": 1, "age_s": -1, "replica": "r", "mark": "watchdog"}]}, "age_s"),
        ({"phases": [{"number": 1, "age_s": 0, "replica": "r", "phase": "x"}]}, "phases[0].phase"),
        ({"faults": [{"number": 1, "age_s": 0, "replica": "r", "xid": 1}]}, "$.faults[0]"),
        ({"own": {"rss_bytes": "big"}}, "$.own.rss_bytes"),
        ({"leaving": "no"}, "$.leaving"),
    ],
)
def test_a_mistake_is_named_by_its_field(change, field):
    with pytest.raises(BadAgentReportError) as refused:
        decode(orjson.dumps(plain(**change)))
    assert field in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ({"hosts": (Host("x" * 300),)}, "$.reading.hosts[0].id"),
        ({"hosts": (Host("a\nb"),)}, "$.reading.hosts[0].id"),
        ({"hosts": (Host("a", cpus=-1),)}, "$.reading.hosts[0].cpus"),
        ({"placed": (Placed("a", "m", "running", used_bytes=10**19),)}, "placed[0].used_bytes"),
        ({"placed": (Placed("a", "m", "running", labels=(("k", "v" * 300),)),)}, "labels"),
        ({"notes": ("x" * 300,)}, "$.reading.notes[0]"),
        ({"disks": tuple(Disk(str(n)) for n in range(ROWS_MAX + 1))}, "$.reading.disks"),
    ],
)
def test_a_row_that_cannot_be_is_named_too(rows, field):
    with pytest.raises(BadAgentReportError) as refused:
        decode(encode(report(reading=reading(**rows))))
    assert field in str(refused.value)


def test_a_source_of_control_characters_is_refused():
    with pytest.raises(BadAgentReportError, match="source"):
        decode(encode(report(reading=Reading("a\x1b[2J", "agent", 1.0))))


def test_more_things_than_fit_are_refused():
    lines = tuple(ReportedLine(n, 0, "r", Mark.WATCHDOG) for n in range(THINGS_MAX + 1))
    with pytest.raises(BadAgentReportError, match="lines"):
        decode(encode(report(lines=lines)))


@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b"[" * 100_000, b"null", b'{"at":1e999}'])
def test_garbage_is_refused(body):
    with pytest.raises(BadAgentReportError):
        decode(body)


def test_fields_of_a_newer_agent_are_passed_over():
    told = plain(moon="full")
    told["reading"]["hosts"] = [{"id": "a", "aura": 3}]
    assert decode(orjson.dumps(told)).reading.hosts == (Host("a"),)
