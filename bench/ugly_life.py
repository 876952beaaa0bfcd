"""What an ugly day of a healthy fleet is made of: recorded noise, the fleet, and how often what.

Used by ``ugly_world.py``, which lives through it, and by ``false_alarms.py``, which counts.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median, pstdev
from typing import Any, Final

from holdfast.core.types import Replica
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.memory.memory_model import MemoryModel
from holdfast.sim.random_streams import stream
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Lengths, Workload

RECORDED: Final = Path(__file__).resolve().parent / "recorded" / "smollm2.json"
MODELS: Final = 25
REPLICAS: Final = 4  # of each model, when the day begins
HOST_REPLICAS: Final = 4  # on one host, of four different models
HOUR: Final = 3_600.0
DAY: Final = 24 * HOUR
# About 50 ms a token with a few requests in the batch, as the recorded engine has on one core; a
# prompt of 32,000 tokens holds the batch up for half a second, and for as much longer as the
# recorded seconds were slow: waiting behind prompts is in those, too.
LAW: Final = EngineParameters(
    step_ms=40.0,
    per_sequence_ms=2.0,
    per_kv_token_ms=2e-4,
    per_prompt_token_ms=0.015,
    batch_max=8,
    kv_tokens_max=100_000,
)


# --- what was recorded ----------------------------------------------------------------------------


class Recorded:
    """Noise of a real engine, to be drawn from."""

    def __init__(self, path: Path = RECORDED) -> None:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self.engine = str(told["engine"])
        self.idle: list[float] = told["idle_canary"]
        # By how many were asked for at a time, alone and beside a busy neighbour.
        self.pace: dict[bool, tuple[list[float], ...]] = {
            beside: tuple(spell["pace"] for spell in told["spells"] if spell["beside"] == beside)
            for beside in (False, True)
        }
        self.first = [value for spell in told["spells"] for value in spell["first"]]
        self.lengths: list[int] = told["lengths"]
        finishes = Counter(told["finishes"])
        self.cut_share = finishes["length"] / finishes.total()
        self.memory = self._memory(told["memory"].values())

    def paces(self, running: int, *, beside: bool) -> list[float]:
        """Seconds of an engine with so many requests, in the order of time."""
        if not running:
            return self.idle
        return self.pace[beside][0 if running == 1 else 1 if running <= 4 else 2]

    @staticmethod
    def _memory(replicas: Any) -> MemoryModel:
        """Growth and noise as shares of the whole, for a process of another size."""
        growths, noises = [], []
        for rows in replicas:
            used = [row[1] for row in rows]
            half = len(used) // 2
            growths.append((median(used[half:]) - used[0]) / used[0])
            noises.append(pstdev(used[half:]) / fmean(used[half:]))
        usual = MemoryModel()
        warm = max(usual.warm_bytes, usual.floor_bytes * max(growths))
        return MemoryModel(warm_bytes=warm, noise=max(usual.noise, *noises))


# --- the script -----------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Weather:
    """How often, and how much; a day's worth unless said otherwise."""

    failed: float = 1e-4  # of attempts: reset, refused, a 500, an empty answer
    probes_lost: float = 1e-5  # of canaries
    first_s: float = 0.15  # of a first token, by which the recorded spread is multiplied
    neighbours: float = 4.0  # of one host: all on it are slower
    neighbour_s: tuple[float, float] = (60.0, 900.0)
    neighbour: tuple[float, float] = (1.3, 2.0)
    slowdowns: float = 2.0  # of everybody
    slowdown_s: tuple[float, float] = (120.0, 600.0)
    compiles: float = 6.0  # of one replica, while it serves: a new shape
    compile_s: tuple[float, float] = (0.5, 3.5)
    warm_up_s: tuple[float, float] = (20.0, 300.0)  # of every start: compilation, in silence
    gaps: float = 3.0  # of one replica's own metrics
    gap_s: tuple[float, float] = (10.0, 600.0)
    gaps_of_all: float = 2.0
    gap_of_all_s: tuple[float, float] = (10.0, 200.0)
    pauses_of_control: float = 24.0
    pause_of_control_s: tuple[float, float] = (1.0, 5.0)
    pauses: float = 2.0  # of everything: hosts that are suspended, and go on
    pause_s: tuple[float, float] = (2.0, 12.0)
    jumps: float = 4.0  # of the clock by which incidents are told
    jump_s: tuple[float, float] = (1.0, 60.0)
    rollouts: float = 1.0  # of one model
    scalings: float = 2.0  # of one model: one or two more for a while
    scaling_s: tuple[float, float] = (1_200.0, 5_400.0)
    restarts: float = 0.2  # of one replica, asked for


def fleet_of(hours: float, seed: int, load: float = 1.0, models: int = MODELS) -> Experiment:
    """Models of four replicas: by the day, in bursts, steady, and hardly ever asked."""
    rng = stream(seed, "ugly life", "fleet")
    replicas, workloads = [], []
    for number in range(models):
        model = f"m{number}"
        replicas += [
            Replica(f"{model}-{index}", model, zone=f"zone-{index % 2}")
            for index in range(REPLICAS)
        ]
        workloads.append((model, _workload(number, rng, load)))
    return Experiment(
        tuple(replicas),
        duration_s=hours * HOUR,
        workloads=tuple(workloads),
        engine=LAW,
        loading=LoadingConfig(start_s=5.0, size_gb=20.0, bandwidth_gb_per_s=1.0),
        poll_s=5.0,
        canary_output=8,
    )


def _workload(number: int, rng: Random, load: float) -> Workload:
    prompt = Lengths(mean=rng.choice((200.0, 600.0, 1_500.0)), cv=2.0)
    output = Lengths(mean=512.0, law="constant")  # what clients allow; answers are as recorded
    kind = number % 5
    if kind in (0, 1):
        day = DAY if kind else 6 * HOUR
        return Workload(0.6 * load, "diurnal", 2.0, day, 5.0, prompt, output)
    if kind in (2, 3):
        burst_s = rng.uniform(20.0, 90.0)
        return Workload(0.4 * load, "bursts", 8.0, 12 * burst_s, burst_s, prompt, output)
    return Workload(rng.choice((0.01, 0.2)) * load, "poisson", prompt=prompt, output=output)


__all__ = [
    "DAY",
    "HOST_REPLICAS",
    "HOUR",
    "MODELS",
    "RECORDED",
    "REPLICAS",
    "Recorded",
    "Weather",
    "fleet_of",
]
