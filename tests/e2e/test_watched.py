"""A gateway process or control that is stopped: found, named, replaced, and no new client lost."""

import asyncio
import contextlib
import os
import signal

import pytest
import uvloop
from click.testing import CliRunner

from holdfast.cli.explain import explain

NEW_CONNECTIONS = 200
WAITING_S = 45  # for what takes about five seconds on an idle machine


def opened(ops, folder, extra=""):
    """Two stand-ins and two gateway processes."""
    made = ops.Stage(folder)
    made.extra = extra
    try:
        made.open()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def stage(ops, tmp_path_factory):
    yield from opened(ops, tmp_path_factory.mktemp("watched"))


@pytest.fixture
def left_alone(ops, tmp_path):
    """The same, where nobody is replaced."""
    yield from opened(ops, tmp_path, "watch: {replace: false}\n")


@contextlib.contextmanager
def stopped(pid):
    """A process that is stopped for as long as the block runs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def metric(ops, stage, series):
    """One figure of the metrics page; None where there is none."""
    for line in ops.call(f"{stage.admin}/metrics").splitlines():
        if line.startswith(series):
            return float(line.split()[-1])
    return None


def incidents(ops, stage, cause):
    """The incidents with this cause."""
    told = ops.call(f"{stage.admin}/incidents")["incidents"]
    return [one for one in told if one["cause"] == cause]


def explained(stage, incident):
    runner = CliRunner(env={"HOLDFAST_ADMIN_TOKEN": None, "COLUMNS": "200"})
    told = runner.invoke(explain, [incident["id"], "--admin", stage.admin])
    assert told.exit_code == 0, told.output
    return told.stdout


async def stopped_and_replaced(ops, stage, kind, pid):
    """Stop a process and wait until another has its place; False where nobody replaces it."""
    number = len(stage.serve.processes(kind))
    os.kill(pid, signal.SIGSTOP)

    def replaced():
        now = stage.serve.processes(kind)
        return pid not in now and len(now) == number

    try:
        await ops.until(replaced, f"a stopped {kind} is replaced", WAITING_S)
    except RuntimeError:
        os.kill(pid, signal.SIGCONT)  # the next test needs it
        raise


def test_a_stopped_gateway_process_is_replaced_and_named_and_no_new_connection_is_lost(ops, stage):
    async def main():
        await stage.whole()
        pid = stage.gateways()[0]
        freezing = asyncio.ensure_future(stopped_and_replaced(ops, stage, "gateway-process", pid))
        await asyncio.sleep(0.2)
        # Half of these wait at the socket of the one that is stopped.
        asked = [ops.harm(stage.port, number) for number in range(NEW_CONNECTIONS)]
        harms = [one for one in await asyncio.gather(*asked) if one]
        await freezing
        assert harms == []
        await stage.whole(without=pid)
        named = lambda: bool(incidents(ops, stage, "gateway_frozen"))  # noqa: E731
        await ops.until(named, "an incident names it", WAITING_S)
        return pid

    pid = uvloop.run(main())
    (incident,) = incidents(ops, stage, "gateway_frozen")
    story = explained(stage, incident)
    assert f"(pid {pid}) was stopped" in story
    assert "killed and replaced" in story
    series = 'holdfast_serving_processes_replaced_total{process="gateway",reason="stopped"}'
    assert metric(ops, stage, series) == 1


def test_a_stopped_control_is_named_and_replaced_while_gateways_serve(ops, stage):
    async def main():
        await stage.whole()
        control = stage.serve.control()
        await stopped_and_replaced(ops, stage, "control-process", control)
        assert not await ops.harm(stage.port, 1)
        await stage.whole()
        named = lambda: bool(incidents(ops, stage, "control_frozen"))  # noqa: E731
        await ops.until(named, "an incident names it", WAITING_S)
        return control

    control = uvloop.run(main())
    (incident,) = incidents(ops, stage, "control_frozen")
    assert f"(pid {control}) was stopped" in explained(stage, incident)
    series = 'holdfast_serving_processes_replaced_total{process="control",reason="stopped"}'
    assert metric(ops, stage, series) == 1


def test_what_is_frozen_and_left_alone_is_named_by_whoever_is_not(ops, left_alone):
    stage = left_alone

    data = f"http://127.0.0.1:{stage.port}"

    def detail(base):
        return ops.call(f"{base}/readyz", timeout_s=2.0)

    async def main():
        await stage.whole()
        control, (first, second) = stage.serve.control(), stage.gateways()
        with stopped(control):
            silent = lambda: "control has been silent" in detail(data)  # noqa: E731
            await ops.until(silent, "gateways say that control is silent", WAITING_S)
            assert not await ops.harm(stage.port, 1)
        await stage.whole()
        with stopped(first):
            named = lambda: "has been stopped for" in detail(stage.admin)  # noqa: E731
            await ops.until(named, "control says that a gateway is stopped", WAITING_S)
            known = lambda: bool(incidents(ops, stage, "gateway_frozen"))  # noqa: E731
            await ops.until(known, "an incident names it", WAITING_S)
            ready = {one["pid"]: one["ready"] for one in stage.status()["gateways"]}
            assert ready == {first: False, second: True}
        await stage.whole()
        assert stage.serve.control() == control
        assert set(stage.gateways()) == {first, second}
        # One that was late itself meanwhile listened anew, and has counted none.
        counted = lambda: metric(ops, stage, "holdfast_control_silences_total") >= 1  # noqa: E731
        await ops.until(counted, "the silence is counted", WAITING_S)
        well = lambda: detail(stage.admin) == "ready\n"  # noqa: E731
        await ops.until(well, "nobody is stopped any more", WAITING_S)

    uvloop.run(main())


def test_a_stopped_supervisor_is_named_by_control_and_clients_are_served(ops, stage):
    def supervisor():
        rows = ops.call(f"{stage.admin}/status")["processes"]
        return next(row for row in rows if row["name"] == "supervisor")

    async def main():
        await stage.whole()
        turning = lambda: supervisor()["condition"] == "turning"  # noqa: E731
        await ops.until(turning, "the supervisor turns", WAITING_S)
        pid = stage.serve.process.pid
        assert supervisor()["pid"] == pid
        with stopped(pid):
            named = lambda: bool(incidents(ops, stage, "supervisor_frozen"))  # noqa: E731
            await ops.until(named, "an incident names it", WAITING_S)
            assert supervisor()["condition"] == "stopped"
            ready = ops.call(f"{stage.admin}/readyz")
            assert "supervisor has been stopped for" in ready
            assert metric(ops, stage, late) > 3
            assert not await ops.harm(stage.port, 1)
        await ops.until(turning, "it goes on", WAITING_S)
        return pid

    late = 'holdfast_serving_process_late_seconds{process="supervisor"}'
    pid = uvloop.run(main())
    (incident,) = incidents(ops, stage, "supervisor_frozen")
    story = explained(stage, incident)
    assert f"supervisor (pid {pid}) was stopped" in story
    assert "kill -CONT" in story
