"""A node of a Ray cluster is killed while clients stream: who is harmed, and what is said of it.

    make .venv-ray/.installed && .venv-ray/bin/python bench/ray_node.py [--runs 5] [--rate 20]

Real processes on one machine: a Ray head, two more nodes, ``holdfast serve`` whose model is
launched with ``launch.on: ray`` (stand-ins, two per node), and clients whose every answer is
compared word by word with what stand-ins are known to say. In each run one of the two nodes is
killed with its engines, as a power cut would kill it (``--spare-engines``: only Ray's own processes
on it), the replicas are waited for on the nodes that are left, and the node is started again for
the next run. Each run has a fleet of its own: replicas that moved are not moved back by anybody,
and a second death would then take all of them.

With ``--packed`` all four replicas are on the node that is killed, and another has just joined: no
spread can help then, and requests wait until replicas are back.

With ``--keep FOLDER`` every harmed request is written there with its status, times and error, and
control's log, events and incidents beside it.

A request is harmed if its text is wrong, cut, repeated or an error, or if it has no end within
``--late-s``. Exit status 1 where more than 1 % are harmed in all, a replica does not come back on
another node, no incident names the node, or another incident is opened beside it.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

from fault_fleet import call, end, free_ports
from fault_load import Load, Shot, poisson, short_prompts, summary
from holdfast.testing.ray_nodes import RayNodes, ray_nodes

TOKENS: Final = 30
STAND_IN: Final = (
    *("{python}", "-m", "holdfast", "stand-in", "--host", "{host}", "--port", "{port}"),
    *("--model", "m", "--ttft-ms", "50", "--tpot-ms", "50", "--tokens", str(TOKENS)),
)
READY_S: Final = 300.0  # for replicas to come, or to come back, on a busy machine
HARMED_MAX: Final = 0.01
CAUSE: Final = "host_unavailable"


def fleet_file(port: int, admin: int, address: str, namespace: str, replicas: int) -> str:
    """The fleet: one model on the cluster."""
    return f"""\
gateway: {{listen: 127.0.0.1:{port}, workers: 1}}
admin: {{listen: 127.0.0.1:{admin}}}
ray: {{address: "{address}", namespace: {namespace}}}
models:
  - name: m
    engine: vllm
    launch: {{on: ray, replicas: {replicas}, slots: 64, cpus: 1, command: {json.dumps(STAND_IN)}}}
"""


class Serve:
    """``holdfast serve`` on the cluster, and what its admin port says."""

    def __init__(self, folder: Path, address: str, namespace: str, replicas: int) -> None:
        self.port, admin = free_ports(2, Random())
        self.admin = f"http://127.0.0.1:{admin}"
        self.replicas = replicas
        config = folder / "fleet.yaml"
        config.write_text(fleet_file(self.port, admin, address, namespace, replicas))
        self.log = folder / "serve.log"
        command = [sys.executable, "-m", "holdfast", "serve", "-c", str(config)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--state-dir", str(folder / "state")], stdout=log, stderr=log
            )

    def status(self) -> dict[str, Any]:
        """What control says of the fleet; empty while it does not answer."""
        try:
            told: dict[str, Any] = call(f"{self.admin}/status", timeout_s=5.0)
        except OSError:
            return {}
        return told

    def ready(self) -> dict[str, str]:
        """The endpoints of replicas that are ready, by id."""
        rows = self.status().get("replicas", [])
        return {row["id"]: row["endpoint"] for row in rows if row["state"] == "ready"}

    def ready_hosts(self) -> list[str] | None:
        """The nodes of the replicas that are ready; None: control did not answer."""
        rows = self.status().get("replicas")
        if rows is None:
            return None
        return [str(row["host"])[-8:] for row in rows if row["state"] == "ready"]

    def hosts(self) -> dict[str, str]:
        """The node of each replica, by the last eight characters of its name."""
        rows = self.status().get("replicas", [])
        return {row["id"]: str(row["host"])[-8:] for row in rows}

    def incidents(self) -> list[dict[str, Any]]:
        """All incidents that control keeps."""
        try:
            told = call(f"{self.admin}/incidents", timeout_s=5.0)
        except OSError:
            return []
        return list(told["incidents"] if isinstance(told, dict) else told)

    async def all_ready(self) -> float:
        """Wait until every replica is ready; returns how long that took."""
        began = time.monotonic()
        while len(await asyncio.to_thread(self.ready)) < self.replicas:
            if time.monotonic() - began > READY_S or self.process.poll() is not None:
                text = self.log.read_text(errors="replace")[-3_000:]
                raise RuntimeError(f"replicas are not ready:\n{self.status()}\n{text}")
            await asyncio.sleep(0.5)
        return time.monotonic() - began


async def one_run(
    serve: Serve, nodes: RayNodes, options: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """Kill a node under load and say what came of it."""
    name, other = ("b", "c") if seed % 2 else ("c", "b")
    if options.packed:
        nodes.add(other)  # Ray sets signal handlers: in this thread, with nothing else under way
    await serve.all_ready()
    known = {one["id"] for one in serve.incidents()}
    loop = asyncio.get_running_loop()
    load = Load("127.0.0.1", serve.port, keep_alive=True)
    begin = loop.time() + 0.5
    shots = poisson(
        seed, options.rate, begin, options.seconds, lengths=short_prompts, tokens=TOKENS
    )
    sending = asyncio.create_task(load.run(shots))
    await asyncio.sleep(0.5 + options.seconds / 3)
    killed = time.monotonic()
    print(f"killed {killed - begin:.2f} s after the first stream", flush=True)
    node = nodes.id(name)
    before = serve.hosts()
    kill = functools.partial(nodes.kill, name, spare_engines=options.spare_engines)
    await asyncio.to_thread(kill)
    noticed, back = await _until_back(serve, node, killed)
    await sending
    await load.settle(options.late_s)
    await serve.all_ready()
    after = serve.hosts()
    found = [one for one in serve.incidents() if one["id"] not in known]
    if not options.packed:
        nodes.add(name)
    told = summary(load.shots, options.late_s)
    causes = sorted({str(one.get("cause")) for one in found})
    named = [one for one in found if one.get("cause") == CAUSE and node[:8] in json.dumps(one)]
    if options.keep:
        keep(serve, load.shots, options, seed, begin)
    return {
        "nodes": sorted(Counter(before.values()).values()),  # replicas on each, before
        "lost": sum(host == node[:8] for host in before.values()),
        "elsewhere": sum(host not in {"", node[:8]} for host in after.values()),
        "requests": told["requests"],
        "harmed": told["harmed"],
        "kinds": told["kinds"],
        "continued": told["continued"],
        "retried": told["retried"],
        "slowest_s": told["slowest_s"],
        "noticed_s": noticed,
        "back_s": back,
        "causes": causes,
        "classes": sorted({str(one.get("class")) for one in named}),
        "node_named": bool(named),
    }


def keep(
    serve: Serve, shots: list[Shot], options: argparse.Namespace, seed: int, begin: float
) -> None:
    """Write down what there is to say of each harmed request, and what control said."""
    folder = Path(options.keep) / f"run-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    harmed = [
        {
            "harm": harm,
            "due_s": round(shot.due - begin, 3),
            "first_s": round(shot.first - begin, 3) if shot.first else None,
            "ended_s": round(shot.ended - begin, 3),
            "status": shot.status,
            "replica": shot.replica,
            "attempts": shot.attempts,
            "words": len(shot.text.split()),
            "refusal": shot.refusal,
        }
        for shot in shots
        if (harm := shot.harm(options.late_s))
    ]
    (folder / "harmed.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in harmed))
    for page in ("status", "incidents", "events"):
        with contextlib.suppress(OSError):
            told = call(f"{serve.admin}/{page}", timeout_s=10.0)
            (folder / f"{page}.json").write_text(json.dumps(told, indent=1))
    (folder / "serve.log").write_bytes(serve.log.read_bytes())


async def _until_back(serve: Serve, node: str, killed: float) -> tuple[float | None, float | None]:
    """When control missed the replicas, and when all were ready on other nodes, in seconds."""
    noticed = None
    while (after := time.monotonic() - killed) < READY_S:
        ready = await asyncio.to_thread(serve.ready_hosts)
        if ready is not None and noticed is None and len(ready) < serve.replicas:
            noticed = round(after, 1)
        if ready is not None and len(ready) == serve.replicas and node[:8] not in ready:
            return noticed, round(after, 1)
        await asyncio.sleep(0.25)
    return noticed, None


async def bench(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs, on one cluster and one fleet."""
    rows = []
    # Nothing is placed on the head: whoever kills it kills Ray, which is another test.
    others = ("b",) if options.packed else ("b", "c")
    with tempfile.TemporaryDirectory() as folder, ray_nodes(*others, num_cpus=0) as nodes:
        for seed in range(1, options.runs + 1):
            made = Path(tempfile.mkdtemp(dir=folder))
            serve = Serve(made, nodes.address, f"bench-{seed}", 4)
            try:
                print(f"4 replicas ready after {await serve.all_ready():.1f} s", flush=True)
                rows.append(await one_run(serve, nodes, options, seed))
                print(json.dumps(rows[-1]), flush=True)
            finally:
                end([serve.process])
    return rows


def main() -> None:
    """Run it, print the rows and the verdict."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=20.0, help="streams per second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of load in each run")
    parser.add_argument("--late-s", type=float, default=30.0, help="a request that takes longer")
    parser.add_argument("--spare-engines", action="store_true", help="kill only Ray's processes")
    parser.add_argument("--packed", action="store_true", help="all replicas on the node that dies")
    parser.add_argument("--keep", default="", help="a folder for what became of harmed requests")
    options = parser.parse_args()
    rows = asyncio.run(bench(options))
    requests, harmed = (sum(row[name] for row in rows) for name in ("requests", "harmed"))
    named = sum(row["node_named"] for row in rows)
    alone = sum(row["causes"] == [CAUSE] for row in rows)
    back = sum(row["back_s"] is not None for row in rows)
    share = harmed / requests if requests else 1.0
    print(
        f"{harmed} of {requests} streams harmed ({100 * share:.2f} %); of {len(rows)} runs an "
        f"incident names the node in {named}, there is no other in {alone}, and all replicas "
        f"came back elsewhere in {back}"
    )
    sys.exit(0 if share <= HARMED_MAX and named == alone == back == len(rows) else 1)


if __name__ == "__main__":
    main()
