"""Feeds the gateway what no well-meaning client or replica would send, and watches its promises.

    python tests/fuzz/gateway.py --cases 10000 --seed 0
    python tests/fuzz/gateway.py --seed 0 --kind relay --batch 3      what failed, again

    http      requests, bent and cut, into the server              fuzz_http.py
    relay     answers of ill replicas through a whole driver       fuzz_relay.py, fuzz_engine.py
    bodies    request bodies into their reader                     fuzz_bodies.py
    upstream  responses of replicas into their connection          fuzz_upstream.py
    links     frames of control, at both ends of a link            fuzz_links.py
    plain     those of a gateway, on the fast path and on the plain one  fuzz_plain.py
    messages  what others write into queues, into its reader       fuzz_messages.py
    forms     uploads into the Files API of batches                fuzz_batch.py
    lines     input files of batches into their check              fuzz_batch.py

Hypothesis draws the cases and makes a failing one smaller. They come in batches, each from a seed
of its own: a batch is what can be run again, and its memory of what was tried stays small. Nothing
here opens a socket or reads a clock. A failure prints the batch, the case and the broken promise,
and the exit status is 1.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from time import perf_counter
from typing import Final
from zlib import crc32

import fuzz_batch
import fuzz_bodies
import fuzz_http
import fuzz_links
import fuzz_messages
import fuzz_plain
import fuzz_relay
import fuzz_upstream
from fuzz_draw import Draw
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

KINDS: Final[dict[str, Callable[[Draw], None]]] = {
    "relay": fuzz_relay.case,
    "http": fuzz_http.case,
    "bodies": fuzz_bodies.case,
    "upstream": fuzz_upstream.case,
    "links": fuzz_links.case,
    "plain": fuzz_plain.case,
    "messages": fuzz_messages.case,
    "forms": fuzz_batch.form_case,
    "lines": fuzz_batch.lines_case,
}
PARTS: Final = {name: 2 if name == "relay" else 1 for name in KINDS}  # of ten cases
BATCH: Final = 250
_NOTE_CHARACTERS: Final = 1_500

Batch = tuple[str, int, int, int]  # kind, number, cases, seed


def batches(cases: int, first_seed: int, only: str | None = None) -> list[Batch]:
    """The work, in pieces that can be run again by themselves."""
    planned: list[Batch] = []
    for kind, parts in PARTS.items():
        if only not in {None, kind}:
            continue
        left = cases if only else cases * parts // 10
        number = 0
        while left > 0:
            planned.append((kind, number, min(left, BATCH), first_seed))
            left -= BATCH
            number += 1
    return planned


def run_batch(batch: Batch) -> tuple[int, str]:
    """How many cases ran, and what went wrong; empty if nothing did."""
    kind, number, cases, first_seed = batch
    ran = 0

    @seed(crc32(f"{kind} {number} {first_seed}".encode()))
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,  # it runs without conftest.py, whose profile says so
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def every_case(rng: Random) -> None:
        nonlocal ran
        KINDS[kind](Draw(rng))
        ran += 1

    try:
        every_case()
    except Exception as failure:  # noqa: BLE001 - any failure at all is a finding
        return ran, _told(batch, failure)
    return ran, ""


def _told(batch: Batch, failure: Exception) -> str:
    kind, number, cases, first_seed = batch
    frames = traceback.extract_tb(failure.__traceback__)[-6:]
    notes = [note[:_NOTE_CHARACTERS] for note in getattr(failure, "__notes__", ())]
    again = f"--seed {first_seed} --cases {cases} --kind {kind} --batch {number}"
    return "\n".join(
        (
            f"a promise was broken: {type(failure).__name__}: {failure}",
            *(f"  {frame.filename}:{frame.lineno} {frame.line}" for frame in frames),
            *notes,
            f"again: {sys.executable} tests/fuzz/gateway.py {again}",
        )
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; exit with 1 at a finding."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=list(KINDS), help="only this kind")
    parser.add_argument("--batch", type=int, help="only this batch of the kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given_here = parser.parse_args(arguments)
    planned = batches(given_here.cases, given_here.seed, given_here.kind)
    if given_here.batch is not None:
        size = min(given_here.cases, BATCH)
        kind = given_here.kind or parser.error("--batch needs --kind")
        planned = [(kind, given_here.batch, size, given_here.seed)]
    began, ran, found = perf_counter(), 0, 0
    # Spawned: a fork of a process with threads may hang.
    with ProcessPoolExecutor(given_here.jobs, get_context("spawn")) as pool:
        for count, trouble in pool.map(run_batch, planned):
            ran += count
            if trouble:
                found += 1
                sys.stdout.write(f"{trouble}\n\n")
    took = perf_counter() - began
    sys.stdout.write(f"{ran} cases in {took:.0f} s, {found} batches with findings\n")
    return 1 if found else 0


__all__ = ["KINDS", "batches", "main", "run_batch"]

if __name__ == "__main__":
    sys.exit(main())
