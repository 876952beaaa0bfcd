"""A fake AWS account, the command line beside it, and a control that watches it.

    FakeAws (moto, in this process) ◄─── holdfast top --once       one look, no control
                 ▲
                 └────────────────────── holdfast serve ◄─── holdfast top, a browser

moto keeps one account for the whole process, so that it is wiped before each fleet. The story of
Parler is told here and not in a test: a terminal, a browser and JSON have to show the same one.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from urllib.request import Request, urlopen

import pytest

ROOT = Path(__file__).parents[2]
for folder in (ROOT / "tests" / "sources" / "aws", ROOT / "bench"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

import aws_fleet  # noqa: E402 found by the path above
import aws_front  # noqa: E402

import fault_fleet  # noqa: E402
import operations  # noqa: E402

CLUSTER = "marigold"
PARLER = "parler-tts"
LOOK_S = 0.2
WITHIN_S = 60.0
COMMAND_S = 120.0
STRANGERS = ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_SESSION_TOKEN")
KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nowhere/config",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere/credentials",
}
# Nothing is wrong with it: each host and model has what it needs, but for what is planted later.
STUDIO = aws_fleet.Plan(
    cluster=CLUSTER,
    groups=(
        aws_fleet.GroupPlan(
            "marigold-gpu", "g4dn.2xlarge", 1, 8, 31_738, 1, spot=True, cuda="12.1", driver="535.18"
        ),
        aws_fleet.GroupPlan("marigold-cpu", "r5.xlarge", 2, 4, 31_612),
    ),
    models=(
        aws_fleet.ModelPlan("llm-8b", "marigold-gpu", 1, 4, 14_000, 28_000, gpus=1, waiting=4),
        aws_fleet.ModelPlan("bge-embed", "marigold-cpu", 2, 1, 10_000, 12_000, waiting=4),
        aws_fleet.ModelPlan(PARLER, "marigold-cpu", 2, 1, 1_024, 1_024, waiting=8, used_mib=None),
    ),
)
# What takes a minute to be believed would take the tests a minute.
QUICK = "incidents: {detectors: {queues: {window_s: 4, sample_s: 1, stand_s: 60}}}\n"


def until(true, what, within_s=WITHIN_S):
    """Wait for something that another process does; what it gave."""
    end = time.monotonic() + within_s
    while not (found := true()):
        if time.monotonic() > end:
            pytest.fail(f"not within {within_s:g} s: {what}")
        time.sleep(LOOK_S)
    return found


@contextmanager
def surroundings(state):
    """Keys that are nobody's, and none of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (*STRANGERS, "HOLDFAST_ADMIN_TOKEN"):
            patch.delenv(name, raising=False)
        for name, value in KEYS.items():
            patch.setenv(name, value)
        patch.setenv("XDG_STATE_HOME", str(state))
        yield


class Stage:
    """One account, one fleet in it, and a fleet file that names it."""

    def __init__(self, folder, plan):
        self.aws = aws_front.FakeAws()
        self._wipe()
        self.fleet = aws_fleet.build(self.aws, plan)
        port, admin = fault_fleet.free_ports(2, Random())
        self.admin = f"http://127.0.0.1:{admin}"
        self.file = folder / "fleet.yaml"
        self.file.write_text(
            f"gateway: {{listen: '127.0.0.1:{port}', workers: 1}}\n"
            f"admin: {{listen: '127.0.0.1:{admin}'}}\n"
            f"sources: [{{type: aws, region: {aws_front.REGION}, cluster: {CLUSTER},"
            f" endpoint_url: '{self.aws.url}', period_s: 1}}]\n{QUICK}"
        )
        self.serve = None

    def close(self):
        if self.serve is not None:
            self.serve.end()
        self.aws.calm()
        self._wipe()  # for whoever is next in this process
        self.aws.close()

    def _wipe(self):
        asked = Request(f"{self.aws.url}/moto-api/reset", method="POST")
        with urlopen(asked, timeout=60):
            pass

    # --- commands --------------------------------------------------------------------------------

    def command(self, *words):
        """What a command of ours printed; it has to end well."""
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words, "-c", str(self.file)],
            env=os.environ | {"NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def look(self):
        return json.loads(self.command("top", "--once", "--json"))

    def text(self, width=220):
        return self.command("top", "--once", "--width", str(width))

    # --- a control -------------------------------------------------------------------------------

    def start(self):
        self.serve = operations.Serve(self.file)
        fault_fleet.wait_for(f"{self.admin}/view", self.serve.process)
        self.until(lambda view: view["queues"] and view["disks"], "the account was read")

    def view(self):
        return fault_fleet.call(f"{self.admin}/view")

    def until(self, true, what):
        """The first view of which this is true."""

        def looked():
            view = self.view()
            return view if true(view) else None

        return until(looked, what)


# --- Parler ---------------------------------------------------------------------------------------


class Parler:
    """It reserves 1 GB and needs four: it loads, takes its first request and is killed, again."""

    def __init__(self, stage):
        self.stage, self.fleet = stage, stage.fleet
        self.plan = next(one for one in stage.fleet.plan.models if one.name == PARLER)
        self.alive = list(stage.fleet.tasks[PARLER])
        self.dead = []
        self._sqs = stage.aws.client("sqs")

    def hosts(self):
        return set(self.fleet.hosts[self.plan.group])

    def die(self):
        """Everybody takes a request and is killed a minute after the start; ECS starts others."""
        for task in list(self.alive):
            now = datetime.now(UTC)
            task.started_at = now - timedelta(seconds=60)
            aws_fleet.say(self.fleet, PARLER, task, 2, {"phase": "request", "id": "r1"})
            aws_fleet.kill_for_memory(self.fleet, task, ago_s=1)
            self.alive.remove(task)
            self.dead.append(task)
            self._replace(task, now)
        aws_fleet.settle(self.fleet)

    def _replace(self, task, now):
        joined = self.fleet.joined.items()
        host = next(
            name
            for name, one in joined
            if one.container_instance_arn == task.container_instance_arn
        )
        new = aws_fleet.start(self.fleet, self.plan, host)
        new.created_at = new.pull_started_at = new.pull_stopped_at = now - timedelta(seconds=30)
        new.started_at = new.created_at
        self.alive.append(new)

    def asked(self, count=6):
        """Clients go on asking, and nobody takes anything from the queue."""
        entries = [{"Id": str(number), "MessageBody": "{}"} for number in range(count)]
        self._sqs.send_message_batch(QueueUrl=self._url(f"{PARLER}-requests"), Entries=entries)

    def gives_up(self):
        """What was handed out too often goes to the dead letters.

        One alone: of two a look could find the first before the second is there.
        """
        self._sqs.send_message(QueueUrl=self._url(f"{PARLER}-dlq"), MessageBody="{}")

    def _url(self, name):
        return self._sqs.get_queue_url(QueueName=name)["QueueUrl"]

    # --- the whole of it -------------------------------------------------------------------------

    def play(self):
        """Step by step, until one incident tells it all; the view that does."""
        self.die()
        self.stage.until(lambda view: view["incidents"], "the first deaths are an incident")

        def grows(view):
            self.asked()
            return told(view, "the queue of parler-tts grew")

        self.stage.until(grows, "the queue is seen to grow")
        self.die()
        names = {task.id for task in self.dead}
        self.stage.until(
            lambda view: view["incidents"] and names <= set(view["incidents"][0]["replicas"]),
            "those that came after them have died as well",
        )
        self.gives_up()
        return self.stage.until(
            lambda view: told(view, "1 more dead letter of parler-tts"), "a letter has died"
        )


def told(view, text):
    """Whether some incident has this among its consequences."""
    return any(text in one for row in view["incidents"] for one in row["consequences"])


__all__ = ["CLUSTER", "PARLER", "STUDIO", "Parler", "Stage", "surroundings", "told", "until"]
