"""Whether another precision is told apart from another model, on a real GPU with trained weights.

    python bench/gpu_precision.py MODEL [--lasts SECONDS]

MODEL is a folder with trained weights that transformers can serve. Four replicas of one pool, whose
file says nothing of a precision: two serve the weights in bf16, one in fp16, and one the same
architecture with other weights under the same name. Printed: how alike the answers of each are to
those of the first, asked directly; and what the fleet made of each after some minutes of traffic.
The fp16 replica must be ready with no word against it, the other model must not be.

Exit status 1 where that does not hold; 2 without a GPU.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import mean
from typing import Final

import yaml

from fault_fleet import call, free_ports
from holdfast.sources.nvml import read_gpus
from real_fleet import RealFleet, stream, until

ENGINE: Final = Path(__file__).with_name("gpu_engine.py")
NAME: Final = "served"  # the same for all: the engine calls a model as its folder is called
TOKENS: Final = 32
QUESTIONS: Final = (
    "What is the capital of France?",
    "Count from one to twenty.",
    "Write one sentence about the sea.",
    "Name three colours.",
    "Why is the sky blue?",
    "Translate 'good morning' to Spanish.",
    "What is 17 plus 25?",
    "Explain what a compiler does.",
    "Tell me a short story about a cat.",
    "List the days of the week.",
)
WEIGHTS: Final = {"bf16-1": "bf16", "bf16-2": "bf16", "fp16": "fp16", "other": "other"}
WELL: Final = ("bf16-1", "bf16-2", "fp16")


def make_weights(model: Path, folder: Path) -> None:
    """Write the model in bf16, in fp16, and with weights drawn anew."""
    torch, transformers = import_module("torch"), import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    auto = transformers.AutoModelForCausalLM
    torch.manual_seed(1)
    for name, precision in (("bf16", "bfloat16"), ("fp16", "float16"), ("other", "bfloat16")):
        weights = auto.from_pretrained(model, dtype=torch.float32)
        if name == "other":
            weights = auto.from_config(weights.config)
        weights.generation_config.do_sample = False
        weights.to(getattr(torch, precision)).save_pretrained(folder / name / NAME)
        tokenizer.save_pretrained(folder / name / NAME)


@contextlib.contextmanager
def engines(folder: Path) -> Iterator[dict[str, int]]:
    """One engine for each replica, by its port; ended afterwards."""
    orders = folder / "orders"
    orders.mkdir()
    ports = dict(zip(WEIGHTS, free_ports(len(WEIGHTS), Random()), strict=True))
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name, weights in WEIGHTS.items():
            command = [sys.executable, str(ENGINE), str(orders), NAME, "--port", str(ports[name])]
            command += ["--host", "127.0.0.1", "--continuous-batching"]
            command += ["--cb-max-memory-percent", "0.1"]
            with (folder / f"{name}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        command,
                        cwd=folder / weights,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        for name, port in ports.items():
            answers = lambda port=port: stream(port, "Hello.", 2, model=NAME).status == 200  # noqa: E731
            try:
                until(answers, f"{name} answers")
            except RuntimeError as error:
                log_end = (folder / f"{name}.log").read_text()[-2_000:]
                raise RuntimeError(f"{error}\n{log_end}") from None
        yield ports
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def likeness(ports: Mapping[str, int]) -> None:
    """Print how alike the answers of each engine are to those of the first."""
    answers = {
        name: [stream(port, question, TOKENS, model=NAME).text for question in QUESTIONS]
        for name, port in ports.items()
    }
    first = answers["bf16-1"]
    print(f"  bf16-1 says: {first[0][:70]!r}; other says: {answers['other'][0][:70]!r}")
    for name, texts in answers.items():
        same = sum(text == known for text, known in zip(texts, first, strict=True))
        alike = mean(
            SequenceMatcher(None, text.split(), known.split()).ratio()
            for text, known in zip(texts, first, strict=True)
        )
        print(f"  {name}: {same} of {len(texts)} answers as bf16-1's, {alike:.2f} of their words")


def judged(folder: Path, ports: Mapping[str, int], lasts_s: float) -> list[str]:
    """Put a fleet in front of the engines and let users ask; what is not as it should be."""
    endpoints = [{"id": name, "url": f"http://127.0.0.1:{port}"} for name, port in ports.items()]
    file = folder / "given.yaml"
    told = {"name": NAME, "engine": "openai", "endpoints": endpoints}
    file.write_text(yaml.safe_dump({"models": [told]}))
    fleet = RealFleet(folder, {}, len(WELL), file)
    served: dict[str, int] = {}
    failed = 0
    try:
        fleet.open()
        ends_at = time.monotonic() + lasts_s
        asked = 0
        while time.monotonic() < ends_at:
            answer = stream(fleet.port, QUESTIONS[asked % len(QUESTIONS)], TOKENS, model=NAME)
            asked += 1
            failed += answer.status != 200 or not answer.finishes
            served[answer.replica] = served.get(answer.replica, 0) + 1
        rows = fleet.replicas()
        incidents = call(f"{fleet.admin}/incidents")["incidents"]
    finally:
        fleet.close()
    accused = [(one["class"], one["cause"], one["replicas"]) for one in incidents]
    for name, row in rows.items():
        print(f"  {name}: {row['state']}; served {served.get(name, 0)}")
    print(f"  {asked} requests, {failed} failed; incidents: {accused}")
    missed = [f"{name} is {rows[name]['state']}" for name in WELL if rows[name]["state"] != "ready"]
    missed += [f"{name} was accused" for name in WELL if any(name in one[2] for one in accused)]
    if rows["other"]["state"] == "ready" or served.get("other"):
        missed.append("another model passes for this one")
    return missed


def main() -> None:
    """Make the weights, serve them, and see who is believed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="a folder with trained weights")
    parser.add_argument("--lasts", type=float, default=90.0, help="seconds of traffic")
    given = parser.parse_args()
    report = read_gpus()
    if not report.available:
        print(f"no GPU: {report.reason}", file=sys.stderr)
        raise SystemExit(2)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        make_weights(given.model.resolve(), folder)
        with engines(folder) as ports:
            likeness(ports)
            missed = judged(folder, ports, given.lasts)
    for one in missed:
        print(f"MISSED: {one}")
    print(missed or "another precision is not taken for another model, another model is found")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
