"""Real agent processes, and a control over TLS that they report to."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from holdfast.agent import Agent
from holdfast.agent.settings import AgentConfig, LogRule, ReplicaRule
from holdfast.agent.stop_signal import StopSignal
from holdfast.core.diagnose.facts import GpuFault, LineSeen, Mark, PhaseSeen
from holdfast.sources.local import LocalConfig, Roots
from holdfast.sources.nvml import Gpu, GpuReport, Xid
from holdfast.sources.process_memory import ProcessTreeUsage

LONG_S = 30.0
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
_RUN = """
import sys
from holdfast.cli import main
main(["agent", *sys.argv[1:]], prog_name="holdfast")
"""
_ENGINE = """
import socket, time
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    time.sleep(60)
"""


@pytest.fixture
def start(killed_at_end, token):
    """Starts ``holdfast agent`` as an operator would."""

    def begin(url, *arguments, secret=token, name="gpu-1"):
        command = [sys.executable, "-c", _RUN, "--url", url, "--name", name]
        environment = {"PATH": os.environ["PATH"], "HOLDFAST_AGENT_TOKEN": secret}
        process = subprocess.Popen(
            [*command, "--period", "1", *arguments],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        return killed_at_end(process)

    return begin


def said(process, words):
    """Reads on until a line holds these words."""
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it never said {words!r}")


def leave(process):
    process.send_signal(signal.SIGTERM)
    assert process.wait(LONG_S) == 0


def test_an_agent_reports_its_host_replicas_and_logs_over_tls_and_leaves(
    control, certificate, start, until, killed_at_end, tmp_path
):
    command = [sys.executable, "-c", _ENGINE]
    engine = killed_at_end(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    port = engine.stdout.readline().strip()
    log = tmp_path / "r1.log"
    log.write_text("Loading safetensors checkpoint shards: 10%\nCUDA out of memory of old\n")
    agent = start(
        control.url,
        *("--ca", certificate[0], "--replica", f"r1=qwen:port={port}", "--engine", "vllm"),
        *("--log", str(tmp_path / "{replica}.log"), "--group", "rack-7"),
    )
    reading = until(control.reading)
    host, row = reading.hosts[0], reading.placed[0]
    assert (host.id, host.group, host.cpus) == ("gpu-1", "rack-7", len(os.sched_getaffinity(0)))
    assert (row.replica, row.model, row.state, row.phase) == ("r1", "qwen", "running", "loading")
    assert row.used_bytes > 1 << 20
    assert row.spoke_at == pytest.approx(log.stat().st_mtime, abs=2)
    with log.open("a") as opened:
        opened.write("secret prompt text\ntorch.cuda.OutOfMemoryError: CUDA out of memory.\n")
    until(lambda: LineSeen("r1", Mark.GPU_MEMORY_FULL, "", "agent gpu-1") in control.seen)
    assert PhaseSeen("r1", "loading") in control.seen
    assert "secret" not in repr(control.reading())
    engine.kill()
    engine.wait(LONG_S)
    until(lambda: control.reading().placed[0].state == "stopped")
    (listed,) = control.inbox.listing()
    assert 5 << 20 < listed["rss_bytes"] < 60 << 20
    assert listed["cpu_share"] < 1
    leave(agent)
    assert control.reading() is None
    assert any("gpu-1 was told to end" in note for note in control.inbox.readings()[0].notes)


def test_the_process_needs_no_library_of_the_fleet_file():
    code = "import sys, holdfast.agent.__main__; print(sorted({'pydantic','yaml','rich','click',"
    code += "'starlette','uvicorn','asyncio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_wrong_token_is_refused_and_said(control, certificate, start):
    agent = start(control.url, "--ca", certificate[0], secret="x" * 40)
    line = said(agent, "refuses the token")
    assert "x" * 40 not in line
    assert control.reading() is None
    leave(agent)


def test_the_admin_token_opens_too(control, certificate, start, until, admin_token):
    agent = start(control.url, "--ca", certificate[0], secret=admin_token)
    until(control.reading)
    leave(agent)


def test_a_certificate_of_somebody_else_is_not_trusted(control, other_certificate, start):
    agent = start(control.url, "--ca", other_certificate[0])
    assert "--ca" in said(agent, "certificate is not trusted")
    assert control.reading() is None
    leave(agent)


def test_a_self_signed_certificate_is_not_trusted_unless_told_to(control, start):
    agent = start(control.url)
    said(agent, "certificate is not trusted: self")
    leave(agent)


def test_a_certificate_of_another_name_is_not_trusted(side, wrong_name_certificate, start):
    with side(wrong_name_certificate) as control:
        agent = start(control.url, "--ca", wrong_name_certificate[0])
        said(agent, "certificate is not trusted: Hostname mismatch")
        leave(agent)


def test_control_goes_away_and_comes_back(side, certificate, start, until, tmp_path):
    log = tmp_path / "r1.log"
    log.touch()
    with side(certificate) as control:
        agent = start(
            control.url,
            *("--ca", certificate[0], "--replica", f"r1=m:pid={os.getpid()}"),
            *("--log", f"r1={log}"),
        )
        until(control.reading)
    assert "trying again" in said(agent, "control cannot be reached")
    with log.open("a") as opened:
        opened.write("CUDA error: an illegal memory access was encountered\n")
    with side(certificate, port=control.port) as again:
        said(agent, "control answers again")
        until(again.reading)
        until(lambda: LineSeen("r1", Mark.CUDA_CORRUPTED, "", "agent gpu-1") in again.seen)
        leave(agent)


def test_plain_http_is_for_this_host_only(side, start, until, tmp_path):
    with side() as control:
        agent = start(control.url.replace("localhost", "127.0.0.1"))
        until(control.reading)
        leave(agent)
    agent = start("http://control.example.org:8001")
    assert agent.wait(LONG_S) == 2
    assert "plain http would send the token readable" in agent.stderr.read()


def test_one_report_says_how_it_went(control, certificate, start):
    well = start(control.url, "--ca", certificate[0], "--once")
    assert well.wait(LONG_S) == 0
    assert "has taken the report of gpu-1" in well.stderr.read()
    ill = start(control.url, "--ca", certificate[0], "--once", secret="x")
    assert ill.wait(LONG_S) == 1
    assert "refuses the token" in ill.stderr.read()


def test_an_agent_ends_in_order_while_control_hangs(certificate, start):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        agent = start(f"https://localhost:{silent.getsockname()[1]}", "--ca", certificate[0])
        said(agent, "reporting as gpu-1")
        leave(agent)
        assert "left without telling control" in agent.stderr.read()


# --- inside one process ---------------------------------------------------------------------------


def make(url, token, **more):
    heard = []
    config = AgentConfig(url, "gpu-1", local=LocalConfig(1.0, host="gpu-1"), **more)
    agent = Agent(config, token, heard.append)
    return agent, heard


def test_an_oom_kill_on_another_host_arrives_as_what_it_was(side, token, tmp_path):
    """The kernel's files are on paper, the report is real."""
    root = tmp_path

    def put(name, text):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    stat = " ".join(["S", "1", *["0"] * 17, "500", "0"])
    put("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    put("proc/uptime", "5000 1\n")
    put("proc/10/stat", f"10 (engine) {stat}\n")
    put("proc/10/status", "RssAnon: 1048576 kB\nRssFile: 0 kB\n")
    put("proc/10/cgroup", "0::/r\n")
    put("cgroup/r/memory.max", f"{1 << 30}\n")
    put("cgroup/r/memory.events", "oom_kill 0\n")
    put("cgroup/r/cgroup.procs", "10\n")
    with side() as control:
        config = AgentConfig(
            control.url,
            "gpu-1",
            local=LocalConfig(1.0, host="gpu-1"),
            replicas=(ReplicaRule("r1", "parler", "pid", "10"),),
        )
        roots = Roots(root / "proc", root / "sys", root / "cgroup")
        agent = Agent(config, token, lambda _: None, roots)
        assert agent.once() == ""
        assert control.reading().placed[0].limit_bytes == 1 << 30
        put("cgroup/r/memory.events", "oom_kill 1\n")
        for name in ("stat", "status", "cgroup"):
            (root / "proc/10" / name).unlink()
        assert agent.once() == ""
        (row,) = control.reading().placed
        assert (row.state, row.oom, row.used_bytes) == ("stopped", True, 1 << 30)
        agent.leave()


def test_what_happened_while_control_was_away_is_told_once_and_a_lost_answer_doubles_nothing(
    side, token, tmp_path
):
    log = tmp_path / "r1.log"
    log.touch()
    with side() as control:
        rules = (ReplicaRule("r1", "m", "pid", str(os.getpid())),)
        agent, _ = make(control.url, token, replicas=rules, logs=(LogRule(str(log)),))
        agent.look()
        with log.open("a") as opened:
            opened.write(OOM * 50)
        assert agent.once() == ""
        assert len(agent._outbox) == 0
        assert control.seen == [LineSeen("r1", Mark.GPU_MEMORY_FULL, "", "agent gpu-1")]
        thing = control.inbox._agents["gpu-1"].report.lines[0]
        agent._outbox.put(thing, time.monotonic())  # as if the answer had been lost
        assert agent.once() == ""
        assert len(control.seen) == 1
        agent.leave()


def test_a_report_that_is_never_taken_is_not_sent_for_ever(side, token, tmp_path):
    log = tmp_path / "r1.log"
    log.touch()
    with side() as control:
        rules = (ReplicaRule("r1" + "x" * 190, "m", "pid", str(os.getpid())),)
        agent, _ = make(control.url, token, replicas=rules, logs=(LogRule(str(log)),))
        agent._life = ""  # which the schema refuses
        agent.look()
        log.write_text(OOM)
        assert "(400)" in agent.once()
        assert "life" in agent.once()
        assert agent._outbox.dropped == 1
        agent.leave()


def test_tries_become_rarer_and_control_can_ask_for_a_pause(token):
    agent, heard = make("http://127.0.0.1:9", token)
    pauses = []
    for _ in range(12):
        agent._failed("nobody listens")
        pauses.append(agent._due)
    assert len(heard) == 1
    begun = agent._failing_since
    assert pauses[0] - begun <= 1.1
    assert 25 < pauses[-1] - begun < 70
    agent._failed("busy", 200.0)
    assert agent._due - begun > 150


def test_the_loop_looks_on_while_control_is_away(token):
    agent, heard = make("http://127.0.0.1:9", token)
    stop, looks = StopSignal(), []
    real = agent.look

    def look():
        looks.append(1)
        if len(looks) == 3:
            stop.set()
        return real()

    agent.look = look
    agent.run(stop)
    assert len(looks) >= 4  # three, and the last one before it leaves
    assert heard[-1].startswith("left without telling control")


def test_a_fault_of_a_gpu_counts_against_who_is_on_it(side, token):
    with side() as control:
        agent, _ = make(control.url, token)
        gpus = (Gpu(0, "a", processes=((10, 1),)), Gpu(1, "b", processes=((20, 1),)))
        agent._host.gpus = GpuReport(available=True, reason="", gpus=gpus)
        agent._host.usages = {
            "r1": ProcessTreeUsage(1, None, None, (10,)),
            "r2": ProcessTreeUsage(1, None, None, (20,)),
        }
        agent._blame(Xid(1.0, 1, "b", 79, "the GPU has fallen off the bus", needs_reset=True))
        agent._send(agent._host.look(), LONG_S)
        assert control.seen == [
            GpuFault("r2", 79, True, "the GPU has fallen off the bus", "agent gpu-1")
        ]
        agent.leave()


def test_a_log_that_cannot_be_read_is_said_in_its_part(token, tmp_path):
    rules = (ReplicaRule("r1", "m", "pid", str(os.getpid())),)
    agent, _ = make(
        "http://127.0.0.1:9", token, replicas=rules, logs=(LogRule(str(tmp_path / "no.log")),)
    )
    part = next(part for part in agent.look().parts if part.name == "logs")
    assert part.error.startswith("no file is")
    assert part.at is None
    agent._logs.close()
