"""A model of one inference engine with continuous batching, advanced in closed form.

All requests of a batch advance by one token per step, and a step takes

    step = a + c·B + b·KV + p·prefill

with B requests in the batch, KV tokens held for them and ``prefill`` prompt tokens of requests
admitted in this step. While the batch does not change, m steps take

    T(m) = m·(a + c·B + b·KV₀) + b·B·m(m-1)/2        (+ p·prefill once, in the first)

so the model leaps from one change of the batch to the next: about three events per request however
many tokens it has. Stepping token by token gives the same times and costs ten times as much.

Between events the state is that of the last *boundary* ``_t0``, the end of a step. An arrival in
the middle of a step takes effect at the next boundary, as it does in a real engine, so ``_t0`` may
lie in the future; then the step that ends there is still running.

With a prefix cache (``kv_block_tokens``), ``prefill`` counts only the tokens of a prompt that no
earlier prompt left there. Memory is reserved for a request as if it shared nothing.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import sqrt
from typing import Final

from holdfast.core.types import nanos
from holdfast.sim.clock import TRAFFIC, Clock
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.memory.prefix_cache import PrefixCache
from holdfast.sim.request_record import ACTIVE, GONE, LEAVING, PARKED, WAITING, EngineRun

_NOBODY: Final[list[EngineRun]] = []


class Engine:
    """One replica's engine; calls ``on_first`` and ``on_done`` as its runs produce tokens."""

    __slots__ = (
        "_b",
        "_base",
        "_batch",
        "_before",
        "_c",
        "_clock",
        "_drip",
        "_factor",
        "_finish",
        "_floor",
        "_fresh",
        "_gaps",
        "_grow",
        "_hung",
        "_kv",
        "_kv_max",
        "_leaving",
        "_m",
        "_on_done",
        "_on_edge",
        "_on_first",
        "_on_park",
        "_on_slow_step",
        "_p",
        "_parked",
        "_pauses",
        "_prefill",
        "_prefill_max",
        "_prefill_ns",
        "_reserved",
        "_resumed",
        "_sequence",
        "_slow_step",
        "_step",
        "_t0",
        "_version",
        "_waiting",
        "batch_max",
        "cache",
    )

    def __init__(
        self,
        law: EngineParameters,
        clock: Clock,
        on_first: Callable[[EngineRun, int], None],
        on_done: Callable[[EngineRun, int], None],
        on_slow_step: Callable[["Engine", int], None],
        slow_step: int = nanos(1.0),
        on_park: Callable[[EngineRun, int], None] = lambda _run, _now: None,
    ) -> None:
        self._prefill_max = law.prefill_tokens_max
        self._clock = clock
        self._on_edge = self._edge
        self._on_first = on_first
        self._on_done = on_done
        self._on_slow_step = on_slow_step
        self._on_park = on_park
        self._slow_step = slow_step  # a step longer than this is told: streams may look silent
        self._floor = law.step_ms * 1e6
        self._c = law.per_sequence_ms * 1e6
        self._b = law.per_kv_token_ms * 1e6
        self._p = law.per_prompt_token_ms * 1e6
        self.batch_max = law.batch_max
        self._kv_max = law.kv_tokens_max
        block = law.kv_block_tokens
        self.cache = PrefixCache(law.kv_tokens_max, block) if block else None
        self._factor = 1.0
        self._drip = 0.0
        self._hung = False
        self._waiting: deque[EngineRun] = deque()
        self._finish: list[tuple[int, int, EngineRun]] = []
        self._parked: list[EngineRun] = []  # stopped by a fault, neither computed nor ended
        self._fresh: list[EngineRun] = []  # admitted in the step that begins at _t0
        self._gaps: deque[tuple[int, int]] = deque(
            maxlen=64
        )  # (end, duration) of long steps, decreasing
        self._pauses: deque[tuple[int, int]] = deque(maxlen=64)  # of those that look like silence
        self._batch = 0
        self._kv = 0
        self._reserved = 0
        self._prefill = 0
        self._step = 0  # index of the step that begins at _t0
        self._t0 = 0
        self._before = 0  # while _t0 lies ahead: when the step that ends there began
        self._resumed = (-1, 0)  # when a hang ended, and when it was that tokens came before
        self._m = 0  # steps to the planned edge; 0 = idle
        self._base = 0.0
        self._grow = 0.0
        self._prefill_ns = 0.0
        self._leaving = 0  # runs cancelled in the middle of the current step
        self._version = 0
        self._sequence = 0

    # --- what a driver may ask -------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Number of requests in the batch, including those that a fault stopped."""
        return self._batch + len(self._parked)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a place in the batch or for memory."""
        return len(self._waiting)

    @property
    def kv_used(self) -> float:
        """Share of KV memory that is reserved for requests, 0 to 1."""
        return self._reserved / self._kv_max

    @property
    def tokens(self) -> int:
        """Number of queued and running tokens, as an engine reports its load."""
        queued = 0
        for run in self._waiting:
            queued += run.prompt + run.output
        return self._reserved + queued

    def produced(self, run: EngineRun, now: int) -> int:
        """Number of tokens that this run has emitted by now."""
        if run.place <= WAITING:
            return 0
        if run.place == PARKED:
            return run.output
        return max(0, self._steps_done(now) - run.admitted)

    def last_token_at(self, now: int) -> int:
        """Time at which the batch last emitted tokens: the latest boundary that has passed."""
        if self._t0 > now:
            return self._before
        resumed, before = self._resumed
        boundary = before if self._t0 == resumed else self._t0  # a hang that ends emits nothing
        if self._t0 == now or self._hung or not self._m:
            return boundary
        m = self._steps_by(now - self._t0)
        if self._duration(m) > now - self._t0:
            m -= 1
        return self._t0 + round(self._duration(m)) if m else boundary

    def streaming(self) -> list[EngineRun]:
        """Runs that have emitted their first token and are not done."""
        active = [run for _, _, run in self._finish if run.place == ACTIVE and run.first_at]
        return active + self._parked

    def everyone(self) -> list[EngineRun]:
        """All runs in this engine, waiting or active, in order of admission."""
        active = [run for _, _, run in self._finish if run.place == ACTIVE]
        return active + self._parked + list(self._waiting)

    def holds(self, run: EngineRun) -> bool:
        """Whether this run is still in the engine, waiting or active."""
        return run.place in (WAITING, ACTIVE, PARKED)

    @property
    def parked(self) -> bool:
        """Whether a fault has stopped runs whose clients still wait for an answer."""
        return bool(self._parked)

    def slow(self) -> bool:
        """Whether the current step takes so long that it looks like silence to a client."""
        return bool(self._m) and self._base + self._prefill_ns > self._slow_step

    def worst_gap_since(self, start: int) -> int:
        """Longest step that ended after ``start``: the longest pause a stream's reader saw."""
        for end, duration in self._gaps:
            if end > start:
                return duration
        return round(self._base)

    def pauses_since(self, start: int) -> list[int]:
        """Return how long those steps took that ended after ``start`` and looked like silence.

        In the order of time; of a stretch of such steps at least two.
        """
        return [duration for end, duration in self._pauses if end > start]

    # --- what a driver may do --------------------------------------------------------------------

    def submit(self, run: EngineRun, now: int) -> bool:
        """Queue a run; it starts at the next boundary with room. False if it can never fit."""
        need = run.prompt + run.output
        if need > self._kv_max:
            return False
        waiting = self._waiting
        waiting.append(run)
        run.place = WAITING
        if (
            not self._hung
            and len(waiting) == 1
            and self._batch < self.batch_max
            and self._reserved + need <= self._kv_max
            and self._to_boundary(now)
        ):
            self._admit()
            self._plan()  # else an edge to come will admit it
        return True

    def cancel(self, run: EngineRun, now: int) -> None:
        """Remove a run; its place is free from the next boundary on."""
        if run.place == WAITING:
            run.place = GONE
            self._waiting.remove(run)
            if self._waiting and not self._hung and self._to_boundary(now):
                self._admit()  # it may have been in the way of the others
                self._plan()
        elif run.place == PARKED:
            run.place = GONE
            self._parked.remove(run)
        elif run.place == ACTIVE:
            if self._hung or self._to_boundary(now):
                self._drop(run)
                if not self._hung:
                    self._admit()
                    self._plan()
            else:
                run.place = LEAVING
                self._leaving += 1

    def crash(self, now: int) -> list[tuple[EngineRun, int]]:
        """Lose all runs; returns each of them with the number of tokens it had emitted."""
        done = self._steps_done(now)
        lost = []
        for _, _, run in self._finish:
            if run.place == ACTIVE:
                lost.append((run, max(0, done - run.admitted)))
            run.place = GONE
        for run in self._waiting:
            run.place = GONE
            lost.append((run, 0))
        for run in self._parked:
            run.place = GONE
            lost.append((run, run.output))
        self._parked.clear()
        self._waiting.clear()
        self._finish.clear()
        self._fresh = []
        self._gaps.clear()
        self._pauses.clear()
        if self.cache is not None:
            self.cache.clear()
        self._batch = self._kv = self._reserved = self._prefill = self._m = self._leaving = 0
        self._hung = False
        self._version += 1
        return lost

    def hang(self, now: int) -> None:
        """Stop emitting tokens; the unfinished part of the current step is lost."""
        if self._m and self._t0 < now:
            done = self._steps_done(now) - self._step
            self._step += done
            self._kv += self._batch * done
            self._t0 += round(self._duration(done))
        self._hung = True
        self._version += 1

    def resume(self, now: int) -> None:
        """Continue after a hang, from the last finished step."""
        silent = max(0, now - self._t0)
        if silent:
            self._resumed = (now, self.last_token_at(now))
        self._hung = False
        self._t0 = max(self._t0, now)
        self._sweep()
        self._admit()
        self._plan()
        step = round(self._base + self._prefill_ns)
        self._note_gap(silent + step, self._t0 + 1)
        if max(silent, step) > self._slow_step:
            self._pauses.append((self._t0 + 1, silent + step))

    def pace(self, factor: float, drip: float, now: int) -> None:
        """Slow steps down by ``factor``; with ``drip``, each decode step takes ``drip`` ns."""
        self._factor = factor
        self._drip = drip
        if self._batch and not self._hung and self._to_boundary(now):
            self._plan()

    # --- closed form -----------------------------------------------------------------------------

    def _duration(self, m: int) -> float:
        return m * self._base + self._grow * m * (m - 1) / 2 + (self._prefill_ns if m else 0.0)

    def _steps_by(self, elapsed: int) -> int:
        """The smallest m with T(m) >= elapsed, at least one."""
        rest = elapsed - self._prefill_ns
        if rest <= self._base:
            return 1
        grow = self._grow
        if grow > 0.0:
            half = self._base - grow / 2
            m = int((sqrt(half * half + 2 * grow * rest) - half) / grow)
        else:
            m = int(rest / self._base)
        if m > 1:
            m -= 1
        base, prefill = self._base, self._prefill_ns
        while m * base + grow * m * (m - 1) / 2 + prefill < elapsed:
            m += 1
        return m

    def _steps_done(self, now: int) -> int:
        """Index of the step that is running now: the number of steps completed."""
        if self._t0 > now:
            return self._step - 1
        if self._hung or not self._m:
            return self._step
        m = self._steps_by(now - self._t0)
        return self._step + (m if self._duration(m) <= now - self._t0 else m - 1)

    # --- boundaries ------------------------------------------------------------------------------

    def _to_boundary(self, now: int) -> bool:
        """Move the state to the end of the step that runs now; False if the edge does that."""
        if self._t0 >= now:
            return True
        planned = self._m
        if not planned:
            self._t0 = now
            return True
        if planned == 1:
            return False
        m = self._steps_by(now - self._t0)
        if m >= planned:
            return False
        after_hang = self._t0 == self._resumed[0]
        self._t0 += round(self._duration(m))
        last = self._base + self._grow * (m - 1)
        self._before = self._t0 - round(last)
        if last > self._slow_step:
            self._note_gap(round(last), self._t0)
            self._note_pauses(round(last), self._t0, m - after_hang)
        self._step += m
        self._kv += self._batch * m
        self._prefill = 0
        return True

    def _admit(self) -> None:
        waiting = self._waiting
        fresh = self._fresh
        step = self._step
        while waiting:
            run = waiting[0]
            prompt, output = run.prompt, run.output
            reserved = self._reserved + prompt + output
            if self._batch >= self.batch_max or reserved > self._kv_max:
                return
            computed = prompt
            if self.cache is not None:
                run.computed = computed = prompt - self.cache.cached_tokens(_prefix(run), prompt)
            if fresh and self._prefill + computed > self._prefill_max:
                return
            waiting.popleft()
            if self.cache is not None:
                self.cache.hold(_prefix(run), prompt + output)
            run.place = ACTIVE
            run.admitted = step
            self._batch += 1
            self._reserved = reserved
            self._kv += prompt
            self._prefill += computed
            fresh.append(run)
            self._sequence = sequence = self._sequence + 1
            heappush(self._finish, (step + output, sequence, run))

    def _drop(self, run: EngineRun) -> None:
        """Free what a cancelled run holds, as of the boundary the state is at."""
        run.place = GONE
        self._batch -= 1
        self._reserved -= run.prompt + run.output
        self._kv -= run.prompt + self._step - run.admitted
        if self.cache is not None:
            self.cache.release(_prefix(run), run.prompt + run.output)
        if self._fresh and run in self._fresh:
            self._fresh.remove(run)
            self._prefill -= run.computed

    def _sweep(self) -> None:
        """Drop those that were cancelled in the middle of the step that has ended."""
        for _, _, run in self._finish:
            if run.place == LEAVING:
                self._drop(run)
        self._leaving = 0

    def _plan(self) -> None:
        """Schedule the next edge: the first token of the fresh, or the earliest finish."""
        self._version = version = self._version + 1
        finish = self._finish
        while finish and finish[0][2].place == GONE:
            heappop(finish)
        batch = self._batch
        if not batch:
            self._m = 0
            return
        factor = self._factor
        base = factor * (self._floor + self._c * batch + self._b * self._kv)
        self._grow = grow = factor * self._b * batch
        if self._fresh:
            self._m = 1
            self._prefill_ns = prefill = factor * self._p * self._prefill
            lasts = first = base + prefill
        else:
            if self._drip:
                base = self._drip
                self._grow = grow = 0.0
            self._prefill_ns = 0.0
            self._m = m = finish[0][0] - self._step
            first = base
            lasts = m * base + grow * m * (m - 1) / 2
        self._base = base
        if first > self._slow_step:
            self._on_slow_step(self, self._t0)
        edge = self._t0 + (int(lasts + 0.5) or 1)
        clock = self._clock  # written out: an edge is planned three times per request
        clock.ticket = ticket = clock.ticket + 1
        heappush(clock.heap, (edge, TRAFFIC, ticket, self._on_edge, version))

    def _edge(self, version: int, now: int) -> None:
        if version != self._version:
            return  # the batch changed after this edge was planned
        m = self._m
        self._step = step = self._step + m
        self._kv += self._batch * m
        last = now - self._t0 if m == 1 else int(self._base + self._grow * (m - 1) + 0.5)
        gaps = self._gaps
        if gaps and gaps[-1][1] <= last:
            self._note_gap(last, now)
        else:
            gaps.append((now, last))
        if last > self._slow_step:
            self._note_pauses(last, now, m - (self._t0 == self._resumed[0]))
        self._t0 = now
        fresh = self._fresh
        if fresh:
            self._fresh = []
            self._prefill = 0
            if self._leaving:
                fresh = [run for run in fresh if run.place != LEAVING]
            for run in fresh:
                run.first_at = now
        else:
            fresh = _NOBODY  # those admitted below are not yet at their first token
        done: list[EngineRun] = []
        finish = self._finish
        while finish and finish[0][0] <= step:
            run = heappop(finish)[2]
            if run.place == ACTIVE:
                run.place = GONE
                self._batch -= 1
                held = run.prompt + run.output
                self._reserved -= held
                self._kv -= held
                if self.cache is not None:
                    self.cache.release(_prefix(run), held)
                done.append(run)
            elif run.place == LEAVING:
                self._drop(run)
        if self._leaving:
            self._sweep()
        if self._waiting:
            self._admit()
        self._plan()
        for run in fresh:
            self._on_first(run, now)
        for run in done:
            if run.parks:
                self._park(run, now)
            else:
                self._on_done(run, now)

    def _park(self, run: EngineRun, now: int) -> None:
        run.place = PARKED
        run.parked_at = now
        self._parked.append(run)
        self._on_park(run, now)

    def _note_gap(self, duration: int, now: int) -> None:
        """Keep the long steps, so that a stream can be told its longest silence."""
        gaps = self._gaps
        while gaps and gaps[-1][1] <= duration:
            gaps.pop()
        gaps.append((now, duration))

    def _note_pauses(self, duration: int, now: int, steps: int) -> None:
        """Keep steps that look like silence; two are enough to tell several from one.

        The first step after a hang is not among them: the pause that ended with it has been noted.
        """
        self._pauses.extend([(now, duration)] * min(steps, 2))


def _prefix(run: EngineRun) -> Sequence[int]:
    """The block hashes of a run's prompt; a canary's prompt is like no other."""
    return () if run.owner is None else run.owner.request.prefix


__all__ = ["Engine"]
