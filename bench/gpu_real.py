"""What is known of a real GPU, and what is made of it: two replicas of a real model on one device.

    python bench/gpu_real.py MODEL [--parts view,memory,kernel,canaries]

MODEL is a folder that transformers can serve. For a host with a GPU, torch and transformers; each
part has a fleet of its own (``holdfast up``), takes less than ten minutes and ends what it started.

    view        status and joined view: each replica's device, its memory, what it does
    memory      another process takes memory of the device step by step, until 20 GB are left:
                nobody may be accused. Then one replica takes 4 GB a minute: who is named, when, and
                how far the forecast is from the moment in which no memory was left
    kernel      one kernel fills the GPU for 90 s: what the replica is called, who else is accused,
                what its users got
    canaries    first tokens with canaries and without, in turns, two fleets of one replica each;
                tokens of canaries at saturation. The fleets share the device: what a canary takes
                from the other fleet is not seen

Exit status 1 where a part does not hold what it should; 2 without a GPU.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import yaml

from fault_fleet import call
from fault_load import quantile
from holdfast.sources.nvml import read_gpus
from real_fleet import Answer, RealFleet, stream

GB: Final = 1e9
PARTS: Final = ("view", "memory", "kernel", "canaries")
LEFT_GB: Final = 20.0
LEAK_GB_MIN: Final = 4.0
LEAK_S: Final = 360.0
NEIGHBOUR_S: Final = 60.0  # until only so much is left; in so many steps
STEPS: Final = 24
WARM_UP_S: Final = 30.0
KERNEL_S: Final = 90.0
FORECAST_MAX: Final = 0.25  # of the time that was left
RATIO_MAX: Final = 1.03
SHARE_MAX: Final = 0.01
BLOCK_S: Final = 15.0
PAIRS: Final = 6
WORKERS: Final = 12
DRAWS: Final = 2_000
ENGINE: Final = Path(__file__).with_name("gpu_engine.py")
BALLAST: Final = """
import sys, time, torch
held = []
for line in sys.stdin:
    held.append(torch.empty(int(float(line)), dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
    print(flush=True)
"""

Row = dict[str, Any]


class GpuFleet(RealFleet):
    """Replicas of one model on this host's GPU, and the folder in which they take orders."""

    def __init__(self, folder: Path, model: Path, replicas: int = 2, **settings: Any) -> None:
        self.orders = folder / "orders"
        self.orders.mkdir(parents=True)
        command = ["env", f"--chdir={model.parent}", sys.executable, str(ENGINE), str(self.orders)]
        command += [model.name, "--port", "{port}"]
        command += ["--host", "127.0.0.1", "--continuous-batching"]
        command += ["--cb-max-memory-percent", "0.15"]
        told = {
            "name": model.name,
            "engine": "openai",
            "launch": {"command": command, "pass_env": ["PYTHONPATH"]},
        }
        file = folder / "given.yaml"
        file.write_text(yaml.safe_dump({"models": [told]}))
        super().__init__(folder, settings, replicas, file)
        self.model = model.name

    def ask(self, content: str, tokens: int) -> Answer:
        """A streamed chat, read to its end."""
        return stream(self.port, content, tokens, model=self.model)

    def order(self, what: str, replica: str, value: float) -> None:
        """Give an order to a replica's engine."""
        endpoint = str(self.replicas()[replica]["endpoint"])
        (self.orders / f"{what}-{endpoint.rpartition(':')[2]}").write_text(str(value))

    def full_at(self) -> float | None:
        """When an engine that leaks found no memory any more, in seconds since 1970."""
        found = [float(path.read_text()) for path in self.orders.glob("full-*")]
        return min(found, default=None)

    def incidents(self) -> list[Row]:
        """All of them, the newest last."""
        found: list[Row] = call(f"{self.admin}/incidents")["incidents"]
        return found


@contextlib.contextmanager
def fleet_of(model: Path, replicas: int = 2, **settings: Any) -> Iterator[GpuFleet]:
    """A fleet that is ready, and is ended afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        fleet = GpuFleet(Path(folder), model, replicas, **settings)
        try:
            fleet.open()
            yield fleet
            for one in fleet.events():
                print(f"  {one['replica']} {one['what']}: {one['reason']}")
        finally:
            fleet.close()


class Neighbour:
    """Another process that holds memory of the same device."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", BALLAST],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def take(self, count: float) -> None:
        """Take so many bytes more."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("it has no pipes")
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def close(self) -> None:
        """End it; the driver takes its memory back."""
        self._process.kill()
        self._process.wait()


class Traffic:
    """One short streamed chat a second, in threads, until it is stopped."""

    def __init__(self, fleet: GpuFleet) -> None:
        self.answers: list[tuple[float, float, str, str]] = []  # begun, took, replica, error
        self._fleet = fleet
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(64)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(1.0):
            self._pool.submit(self._ask)

    def _ask(self) -> None:
        begun = time.time()
        answer = self._fleet.ask("Count from one to ten.", 16)
        well = answer.status == 200 and bool(answer.finishes)
        error = answer.error or ("" if well else f"status {answer.status}, no end")
        self.answers.append((begun, time.time() - begun, answer.replica, error))

    def close(self) -> None:
        """Stop it, and wait for what is under way."""
        self._over.set()
        self._thread.join()
        self._pool.shutdown()


# --- the parts ------------------------------------------------------------------------------------


def view(model: Path) -> list[str]:
    """Print status and joined view of two replicas on one device."""
    with fleet_of(model) as fleet:
        for _ in range(20):
            fleet.ask("Say something.", 8)
        time.sleep(25.0)  # until GPUs were read again, and replicas after them
        command = [sys.executable, "-m", "holdfast", "status", "--admin", fleet.admin]
        print(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
        rows = fleet.replicas()
        for row in rows.values():
            print(json.dumps({"id": row["id"], "pid": row["pid"], "gpu": row.get("gpu")}))
        view = call(f"{fleet.admin}/view")
        print(json.dumps({"hosts": view["hosts"], "replicas": view["replicas"]}, indent=1))
        unknown = [name for name, row in rows.items() if not row.get("gpu")]
    return [f"nothing is known of the GPU of {name}" for name in unknown]


def memory(model: Path) -> list[str]:
    """Let another process take most of the device, and then one replica what is left."""
    # Else the replica is restarted once it is named, and nobody learns when it would have ended.
    with fleet_of(model, incidents={"dry_run": True}) as fleet:
        neighbour, traffic = Neighbour(), Traffic(fleet)
        try:
            time.sleep(WARM_UP_S)  # what the first requests take is no leak
            [gpu] = read_gpus().gpus
            wanted = (gpu.memory_total or 0) - (gpu.memory_used or 0) - LEFT_GB * GB
            for _ in range(STEPS):
                neighbour.take(max(0.0, wanted / STEPS))
                time.sleep(NEIGHBOUR_S / STEPS)
            accused = [(one["cause"], one["replicas"]) for one in fleet.incidents()]
            print(
                f"a neighbour took {wanted / GB:.0f} GB in {NEIGHBOUR_S:g} s; incidents: {accused}"
            )
            victim = min(fleet.ready())
            begun = time.time()
            fleet.order("leak", victim, LEAK_GB_MIN * GB)
            progress = begun
            told: Row = {}
            while time.time() - begun < LEAK_S and fleet.full_at() is None:
                time.sleep(1.0)
                leaks = [one for one in fleet.incidents() if one["cause"] == "leak"]
                if time.time() - progress > 20:
                    progress = time.time()
                    held = (fleet.replicas()[victim].get("gpu") or {}).get("held_bytes") or 0
                    print(f"{progress - begun:.0f} s: it holds {held / GB:.1f} GB", flush=True)
                if leaks and not told:
                    told = call(f"{fleet.admin}/incidents/{leaks[0]['id']}")
                    told["seen_at"] = time.time()
            full_at = fleet.full_at()
        finally:
            traffic.close()
            neighbour.close()
        missed = [f"accused beside a neighbour: {accused}"] if accused else []
        return missed + judge_leak(told, victim, begun, full_at, fleet.incidents())


def judge_leak(
    told: Row, victim: str, begun: float, full_at: float | None, incidents: Sequence[Row]
) -> list[str]:
    """Print what was said of the leak; what of it is not as it should be."""
    others = [(one["cause"], one["replicas"]) for one in incidents if one["id"] != told.get("id")]
    lasted = f"after {full_at - begun:.0f} s" if full_at is not None else "never"
    print(f"leak of {victim}: full {lasted}; also: {others}")
    if not told or full_at is None:
        return ["the leak was not named" if not told else "memory was never full"]
    print(json.dumps(told, indent=1, default=str)[:3_000])
    [forecast_s] = [
        piece["numbers"]["exhausted_in_s"]
        for piece in told["evidence"]
        if "exhausted_in_s" in piece.get("numbers", {})
    ][:1] or [float("nan")]
    left_s = full_at - told["seen_at"]
    off = abs(forecast_s - left_s) / left_s
    named_s = told["seen_at"] - begun
    print(f"named after {named_s:.0f} s; full in {forecast_s:.0f} s, was {left_s:.0f} s")
    missed = [] if told["replicas"] == [victim] else [f"{told['replicas']} accused, not {victim}"]
    return missed if off <= FORECAST_MAX else [*missed, f"the forecast is off by {off:.0%}"]


def kernel(model: Path) -> list[str]:
    """Fill the GPU with one replica's kernel for 90 s."""
    with fleet_of(model) as fleet:
        traffic = Traffic(fleet)
        try:
            time.sleep(WARM_UP_S)
            victim = min(fleet.ready())
            begun = time.time()
            fleet.order("kernel", victim, KERNEL_S)
            named: dict[str, float] = {}
            while time.time() - begun < KERNEL_S + 30:
                time.sleep(0.5)
                for one in fleet.incidents():
                    key = f"{one['class']}, {one['cause']} of {', '.join(one['replicas'])}"
                    named.setdefault(key, time.time() - begun)
        finally:
            traffic.close()
    during = [one for one in traffic.answers if begun <= one[0] <= begun + KERNEL_S]
    failed = [one for one in during if one[3]]
    took = sorted(one[1] for one in during)
    print(f"kernel of {KERNEL_S:g} s in {victim}; named: {named}")
    served = {name: sum(one[2] == name for one in during) for name in {one[2] for one in during}}
    print(
        f"{len(during)} requests began meanwhile, {len(failed)} failed,"
        f" median {median(took):.1f} s, longest {took[-1]:.1f} s, first served by {served}"
    )
    mine = [key for key in named if victim in key]
    missed = [] if mine else [f"{victim} was not named"]
    return missed + [f"failed: {one[3]}" for one in failed[:3]]


def canaries(model: Path) -> list[str]:
    """Compare first tokens with canaries and without, and count canaries' tokens at saturation."""
    rare = {"health": {"canary_s": 86_400}}  # rarer than this takes
    with fleet_of(model, 1) as asked, fleet_of(model, 1, fleet=rare) as quiet:
        pairs: list[tuple[list[float], list[float]]] = []
        for number in range(PAIRS):
            turns = {False: quiet, True: asked} if number % 2 else {True: asked, False: quiet}
            firsts = {which: first_tokens(fleet, BLOCK_S) for which, fleet in turns.items()}
            pairs.append((firsts[True], firsts[False]))
        before = canary_tokens(asked)
        first_tokens(asked, 2 * BLOCK_S, 4 * WORKERS)
        after = canary_tokens(asked)
    ours, users = after[0] - before[0], after[1] - before[1]
    share = ours / max(1, ours + users)
    ratio, low, high = p99_ratio(pairs)
    counts = [sum(len(pair[side]) for pair in pairs) for side in (0, 1)]
    told = f"{ratio:.3f} ({low:.3f} to {high:.3f}), of {counts}"
    print(f"first tokens, p99 with canaries / without: {told}")
    print(f"canaries' share of tokens at saturation: {share:.2%} ({ours} of {ours + users})")
    missed = [] if low <= RATIO_MAX else [f"first tokens are {low:.3f} times as late at least"]
    return missed if share <= SHARE_MAX else [*missed, f"canaries take {share:.2%} of tokens"]


def first_tokens(fleet: GpuFleet, lasts_s: float, workers: int = WORKERS) -> list[float]:
    """Seconds until the first token of each request that so many clients send one after another."""
    until_s = time.monotonic() + lasts_s
    found: list[float] = []

    def client(number: int) -> None:
        draw = Random(number)
        while time.monotonic() < until_s:
            words = " ".join(draw.choices(("alpha", "beta", "gamma", "delta"), k=20))
            found.append(fleet.ask(words, 4).first_s)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(client, range(workers)))
    return found


def p99_ratio(pairs: Sequence[tuple[list[float], list[float]]]) -> tuple[float, float, float]:
    """The ratio of the p99 over all blocks, and its 90 % interval by a bootstrap over pairs."""

    def ratio(chosen: Sequence[tuple[list[float], list[float]]]) -> float:
        sides = [[one for pair in chosen for one in pair[side]] for side in (0, 1)]
        return quantile(sides[0], 0.99) / quantile(sides[1], 0.99)

    draw = Random(0)
    found = sorted(ratio(draw.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    return ratio(pairs), found[DRAWS // 20], found[-DRAWS // 20]


def canary_tokens(fleet: GpuFleet) -> tuple[int, int]:
    """Tokens of canaries and of users so far, by the fleet's own account."""
    told = [row["canary"] for row in fleet.replicas().values() if row.get("canary")]
    return sum(one["tokens"] for one in told), sum(one["users_tokens"] for one in told)


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="a folder with a model")
    parser.add_argument("--parts", default=",".join(PARTS), help="which, and in which order")
    given = parser.parse_args()
    wanted = given.parts.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))}: use {', '.join(PARTS)}")
    report = read_gpus()
    if not report.available:
        print(f"no GPU: {report.reason}", file=sys.stderr)
        raise SystemExit(2)
    missed: list[str] = []
    for part in wanted:
        begun = time.monotonic()
        print(f"--- {part}", flush=True)
        found = globals()[part](given.model.resolve())
        missed += [f"{part}: {one}" for one in found]
        print(f"{part}: {time.monotonic() - begun:.0f} s, {found or 'as it should be'}", flush=True)
    for one in missed:
        print(f"MISSED: {one}")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
