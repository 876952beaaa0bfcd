"""Computes how many replicas carry a traffic within its latency objectives.

Each replica runs a batch; a larger batch serves more requests and gives each of them its tokens
more slowly. So the objective for a token chooses the batch, and the objective for the first token
chooses how many such batches there must be. Prompts may be read by other replicas than those that
answer.
"""

from dataclasses import dataclass
from math import ceil, inf

from holdfast.core.plan.engine_speeds import EngineSpeed
from holdfast.core.plan.queues import servers_for
from holdfast.core.types import ConfigError, require


@dataclass(slots=True, frozen=True)
class Traffic:
    """The load to plan for: requests per second, and mean tokens of a prompt and of an answer.

    Raises ``ConfigError`` when built with a bad value.
    """

    requests_s: float
    prompt: float  # tokens
    output: float

    def __post_init__(self) -> None:
        good = 0.0 < self.requests_s < inf
        fix = "use requests per second above 0"
        require(good, "traffic.rate", f"is {self.requests_s:g}", fix)
        for name in ("prompt", "output"):
            value = getattr(self, name)
            good = 1.0 <= value < inf
            require(good, f"traffic.{name}", f"is {value:g}", "use 1 token or more")


def users_to_rate(users: float, think_s: float, answer_s: float) -> float:
    """Return the requests/s of ``users`` who wait for an answer and then think: ``N / (T + Z)``.

    Little's law; exact on average. Assumes that answers take ``answer_s`` under load as well, so it
    is an upper bound where a fleet is short.
    """
    require(users > 0, "traffic.users", f"is {users:g}", "use a number above 0")
    require(think_s >= 0, "traffic.think", f"is {think_s:g}", "use seconds, 0 or more")
    require(answer_s > 0, "traffic.answer_s", f"is {answer_s:g}", "use seconds above 0")
    return users / (think_s + answer_s)


def alone_ms(speed: EngineSpeed, prompt: float, output: float) -> tuple[float, float]:
    """Return (ms to read a prompt, ms to write the answer) of one request alone on a replica."""
    held = prompt + output / 2.0
    return speed.prefill(prompt), output * speed.step(1, held)


def token_budget_ms(latency_s: float, first_token_s: float, output: float) -> float:
    """Return the ms each further token may take: ``(latency - first token) / (output - 1)``.

    Raises ``ConfigError`` if the latency is not above the first token's.
    """
    after = latency_s - first_token_s
    fix = f"use more than the first token's {first_token_s:g} s"
    require(after > 0, "capacity.latency", f"is {latency_s:g}", fix)
    return after * 1000.0 / max(1.0, output - 1.0)


@dataclass(slots=True, frozen=True)
class BatchChoice:
    """How one replica performs with ``batch`` requests at once: times and requests per second.

    Computed from its measured speed: ms per step and token, seconds per request. ``batch_at``
    builds it for any batch; ``choose_batch`` returns the largest that keeps the token budget.
    """

    batch: int
    step_ms: float
    token_ms: float  # with the time for reading others' prompts
    service_s: float  # one request, from its first step to its last
    requests_s: float  # of one replica with its batch full


def batch_at(speed: EngineSpeed, traffic: Traffic, batch: int) -> BatchChoice:
    """Return the ``BatchChoice`` of a replica with this many requests at once; checks no limit.

    ``service = output x step(B) + B x prefill``: while ``B`` requests run, each sees the prompts of
    the others being read between its tokens. Assumes means.
    """
    held = batch * (traffic.prompt + traffic.output / 2.0)
    step = speed.step(batch, held)
    prefill = speed.prefill(traffic.prompt)
    service = (traffic.output * step + batch * prefill) / 1000.0
    token = step + batch * prefill / traffic.output
    return BatchChoice(batch, step, token, service, batch / service)


def choose_batch(
    speed: EngineSpeed, traffic: Traffic, budget_ms: float | None, kv_tokens: float | None = None
) -> BatchChoice:
    """Return the ``BatchChoice`` of the largest batch within the token budget whose cache fits.

    ``budget_ms`` None: no budget. ``kv_tokens`` is the room for KV cache of one replica; None: no
    bound. Raises ``ConfigError`` where one request alone is too slow or too large: more replicas do
    not help.
    """
    most = speed.batch_max
    if kv_tokens is not None:
        held = traffic.prompt + traffic.output / 2.0
        most = min(most, int(kv_tokens / held))
        fix = "use shorter prompts or a replica with more memory"
        require(most >= 1, "capacity.kv_tokens", f"is {kv_tokens:g}, less than one request", fix)
    alone = batch_at(speed, traffic, 1)
    if budget_ms is not None and alone.token_ms > budget_ms:
        problem = (
            f"leaves {budget_ms:.3g} ms for a token, and a request alone on a replica takes "
            f"{alone.token_ms:.3g} ms"
        )
        fix = "use a faster engine, shorter answers, or a later deadline; more replicas do not help"
        raise ConfigError("capacity.latency", problem, fix)
    if budget_ms is None:
        return batch_at(speed, traffic, most)
    low, high = 1, most
    while low < high:  # a larger batch is never faster, except where a band begins: checked below
        middle = (low + high + 1) // 2
        if batch_at(speed, traffic, middle).token_ms <= budget_ms:
            low = middle
        else:
            high = middle - 1
    return batch_at(speed, traffic, low)


@dataclass(slots=True, frozen=True)
class ReplicaNeed:
    """Result of ``replicas_for``: how many replicas a traffic needs, what each bound asks for."""

    replicas: int
    batch: BatchChoice
    slots: int  # requests at once, of all replicas
    offered: float  # requests at once on average, by Little's law
    utilisation: float
    by_waiting: int  # replicas that the wait for a first token asks for
    by_utilisation: int  # and those that the bound on utilisation asks for


def replicas_for(
    traffic: Traffic,
    batch: BatchChoice,
    *,
    wait_s: float,
    late_share: float,
    utilisation: float,
) -> ReplicaNeed:
    """Return the ``ReplicaNeed``: fewest replicas that keep both waits and utilisation in bounds.

    At most ``late_share`` of requests wait longer than ``wait_s`` for a place, and replicas are at
    most ``utilisation`` busy on average; at least 1. All places count as one queue (Erlang C): too
    low for bursts or blind routers. Raises ``ConfigError`` if ``wait_s`` is negative.
    """
    require(wait_s >= 0, "capacity.first_token", "leaves no time to wait", "use a later deadline")
    offered = traffic.requests_s * batch.service_s
    slots = servers_for(offered, wait_s / batch.service_s, late_share)
    by_waiting = ceil(slots / batch.batch)
    by_utilisation = ceil(offered / (utilisation * batch.batch) - 1e-9)
    count = max(1, by_waiting, by_utilisation)
    return ReplicaNeed(
        count,
        batch,
        count * batch.batch,
        offered,
        offered / (count * batch.batch),
        by_waiting,
        by_utilisation,
    )


@dataclass(slots=True, frozen=True)
class SplitNeed:
    """Result of ``split_need``: replicas that only read prompts, replicas that only write answers.

    Also what each bound asks for, and the KV cache bytes that move between them.
    """

    prefill: int
    decode: int
    prefill_offered: float  # busy prefill replicas on average
    decode_offered: float  # answers under way on average
    prefill_by_waiting: int
    prefill_by_utilisation: int
    decode_by_batch: int  # enough places for the mean, and no more
    transfer_bytes: float  # KV cache of one request that moves between them
    transfer_s: float
    transfer_bytes_s: float  # of all requests


def split_need(
    speed: EngineSpeed,
    traffic: Traffic,
    batch: int,
    *,
    wait_s: float,
    late_share: float,
    utilisation: float,
    kv_bytes_per_token: float,
    link_bytes_s: float,
) -> SplitNeed:
    """Return the ``SplitNeed``: replicas for prompts and for answers apart (disaggregation).

    A prefill replica reads one prompt at a time: Erlang C over them. A decode replica writes
    ``batch`` answers at once, sized by ``utilisation``. At least 1 of each. Assumes that nothing
    waits for the KV cache to move; leaves out cached prompts.
    """
    require(batch >= 1, "capacity.batch", f"is {batch}", "use 1 or more")
    require(link_bytes_s > 0, "capacity.link", f"is {link_bytes_s:g}", "use bytes/s above 0")
    read_s = speed.prefill(traffic.prompt) / 1000.0
    reading = traffic.requests_s * read_s
    by_waiting = servers_for(reading, wait_s / read_s, late_share) if read_s else 1
    by_utilisation = ceil(reading / utilisation - 1e-9)
    held = batch * (traffic.prompt + traffic.output / 2.0)
    writing = traffic.requests_s * traffic.output * speed.step(batch, held) / 1000.0
    moved = traffic.prompt * kv_bytes_per_token
    return SplitNeed(
        prefill=max(1, by_waiting, by_utilisation),
        decode=max(1, ceil(writing / (batch * utilisation) - 1e-9)),
        prefill_offered=reading,
        decode_offered=writing,
        prefill_by_waiting=by_waiting,
        prefill_by_utilisation=by_utilisation,
        decode_by_batch=ceil(writing / batch - 1e-9),
        transfer_bytes=moved,
        transfer_s=moved / link_bytes_s,
        transfer_bytes_s=moved * traffic.requests_s,
    )


def warm_share(surge: float, start_s: float, ramp_s: float) -> float:
    """Return the spare replicas that must stand ready for a surge, as a share of the present ones.

    Load climbs to ``surge`` times over ``ramp_s``; a replica serves ``start_s`` after it was asked
    for: ``(surge - 1) x min(1, start / ramp)``. Assumes a scaler that asks at once for what it
    sees.
    """
    require(surge >= 1, "capacity.surge", f"is {surge:g}", "use a factor of 1 or more")
    require(start_s >= 0, "capacity.start", f"is {start_s:g}", "use seconds, 0 or more")
    require(ramp_s >= 0, "capacity.ramp", f"is {ramp_s:g}", "use seconds, 0 or more")
    behind = 1.0 if ramp_s <= start_s else start_s / ramp_s
    return (surge - 1.0) * behind


def batch_on_the_spare(
    replicas: int, batch: BatchChoice, mean_requests_s: float, utilisation: float
) -> float:
    """Return requests/s of batch work that fit beside the mean interactive load; 0 if none.

    ``replicas x requests/s x utilisation - mean rate``. Assumes batch requests of the same lengths
    that give way at once.
    """
    return max(0.0, replicas * batch.requests_s * utilisation - mean_requests_s)


__all__ = [
    "BatchChoice",
    "ReplicaNeed",
    "SplitNeed",
    "Traffic",
    "alone_ms",
    "batch_at",
    "batch_on_the_spare",
    "choose_batch",
    "replicas_for",
    "split_need",
    "token_budget_ms",
    "users_to_rate",
    "warm_share",
]
