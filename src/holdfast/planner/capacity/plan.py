"""Plans capacity: replicas for a traffic, by formula first and by simulation to confirm."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from holdfast.core.plan.accelerators import LINKS
from holdfast.core.plan.capacity import (
    BatchChoice,
    SplitNeed,
    alone_ms,
    batch_at,
    batch_on_the_spare,
    replicas_for,
    warm_share,
)
from holdfast.core.plan.engine_speeds import SPEEDS
from holdfast.core.plan.redundancy import HOURS_PER_MONTH
from holdfast.core.types import require
from holdfast.planner.answer import PlanAnswer, PlanStep, PlanTable
from holdfast.planner.capacity.fleet_size import SizedFleet, replicas_chart, scaled, size_fleet
from holdfast.planner.capacity.overload import overload_rows, overload_table
from holdfast.planner.capacity.risks import risk_figures, risk_remarks, waiting_step
from holdfast.planner.capacity.simulation import SimulatedCapacity, confirm, confirm_split
from holdfast.planner.capacity.tiers import tiers_answer
from holdfast.planner.capacity.traffic import speed_of, traffic_of
from holdfast.planner.question import FieldKind, PlanField, PlanKind
from holdfast.planner.units import money

_TRAFFIC, _SPEED, _GOAL, _RISK = "Traffic", "Engine", "Objectives", "Trouble"

FIELDS: Final = (
    PlanField("rate", FieldKind.NUMBER, "Requests per second.", group=_TRAFFIC),
    PlanField(
        "users",
        FieldKind.QUANTITY,
        "Users who ask, wait and think; instead of --rate.",
        group=_TRAFFIC,
    ),
    PlanField(
        "think", FieldKind.DURATION, "What a user thinks before asking again.", 0.0, group=_TRAFFIC
    ),
    PlanField("trace", FieldKind.FILE, "A CSV (Azure) or JSONL (Mooncake) trace instead."),
    PlanField("prompt", FieldKind.NUMBER, "Tokens of a prompt, on average.", group=_TRAFFIC),
    PlanField("output", FieldKind.NUMBER, "Tokens of an answer, on average.", group=_TRAFFIC),
    PlanField(
        "peak", FieldKind.NUMBER, "Peak over mean rate.", 1.0, least=1, most=1000, group=_TRAFFIC
    ),
    PlanField(
        "speed",
        FieldKind.CHOICE,
        "A measured engine.",
        choices=tuple(SPEEDS),
        group=_SPEED,
    ),
    PlanField("bench", FieldKind.FILE, "A file of 'holdfast bench' or 'vllm bench serve' instead."),
    PlanField(
        "step_ms", FieldKind.NUMBER, "Milliseconds of a step, instead of --speed.", group=_SPEED
    ),
    PlanField("per_sequence_ms", FieldKind.NUMBER, "More for each request in it.", 0.0, least=0),
    PlanField("per_kv_token_ms", FieldKind.NUMBER, "More for each token held.", 0.0, least=0),
    PlanField(
        "prefill_ms_per_token", FieldKind.NUMBER, "Milliseconds per prompt token.", group=_SPEED
    ),
    PlanField(
        "batch",
        FieldKind.COUNT,
        "Most requests at once on a replica.",
        least=1,
        most=100_000,
        group=_SPEED,
    ),
    PlanField("kv_tokens", FieldKind.QUANTITY, "KV cache of a replica, in tokens.", least=1),
    PlanField(
        "first_token", FieldKind.DURATION, "Objective: first token within.", 1.0, group=_GOAL
    ),
    PlanField("latency", FieldKind.DURATION, "Objective: whole answer within.", group=_GOAL),
    PlanField(
        "quantile", FieldKind.NUMBER, "Share of requests that must meet them.", 0.99, group=_GOAL
    ),
    PlanField(
        "utilisation", FieldKind.NUMBER, "How busy replicas may be on average.", 0.8, group=_GOAL
    ),
    PlanField("split", FieldKind.FLAG, "Read prompts and write answers on other replicas.", False),
    PlanField(
        "model", FieldKind.TEXT, "A built-in model, for its KV cache in --split.", "llama-3.1-8b"
    ),
    PlanField(
        "link", FieldKind.CHOICE, "The way of the KV cache.", "400gbit", choices=tuple(LINKS)
    ),
    PlanField("tiers", FieldKind.TEXT, "Shares by engine: NAME=SHARE, several by commas."),
    PlanField("cost_per_hour", FieldKind.NUMBER, "Price of one replica.", least=0),
    PlanField(
        "surge",
        FieldKind.NUMBER,
        "Traffic that may come at once, times.",
        1.0,
        least=1,
        most=1000,
        group=_RISK,
    ),
    PlanField("ramp", FieldKind.DURATION, "In so long.", 300.0, least=0, group=_RISK),
    PlanField(
        "start", FieldKind.DURATION, "Until a new replica serves.", 120.0, least=0, group=_RISK
    ),
    PlanField(
        "attempts",
        FieldKind.COUNT,
        "Attempts per request of clients.",
        1,
        least=1,
        most=100,
        group=_RISK,
    ),
    PlanField("layers", FieldKind.COUNT, "Layers that each try so often.", 1, least=1, most=10),
    PlanField("failing", FieldKind.NUMBER, "Share of attempts that fail.", 0.0, group=_RISK),
    PlanField("hedge_at", FieldKind.NUMBER, "Send a second copy after this quantile."),
    PlanField(
        "fan_out",
        FieldKind.COUNT,
        "Calls that one user waits for together.",
        1,
        least=1,
        most=100_000,
    ),
    PlanField(
        "degrade",
        FieldKind.TEXT,
        "What is given up under overload, in order: quality=ENGINE*REPLICAS, completeness=TOKENS, "
        "latency=SECONDS.",
        group=_RISK,
    ),
    PlanField("simulate", FieldKind.FLAG, "Confirm with the simulator.", False),
)


def _missing(values: Mapping[str, Any]) -> list[str]:
    lacking = []
    if values["trace"] is None:
        if values["rate"] is None and values["users"] is None:
            lacking.append("rate")
        lacking += [name for name in ("prompt", "output") if values[name] is None]
    if all(values[name] is None for name in ("speed", "step_ms", "bench", "tiers")):
        lacking.append("speed")
    return lacking


def capacity(values: Mapping[str, Any]) -> PlanAnswer:
    """Answer a capacity question; ``values`` has all of ``FIELDS``."""
    quantile = values["quantile"]
    good = 0.0 < quantile < 1.0
    require(good, "capacity.quantile", f"is {quantile:g}", "use a share such as 0.99")
    good = 0.0 < values["utilisation"] <= 1.0
    fix = "use a share above 0 and up to 1"
    require(good, "capacity.utilisation", f"is {values['utilisation']:g}", fix)
    if values["tiers"] is not None:
        return tiers_answer(values)
    speed = speed_of(values)
    plan = size_fleet(values, speed, traffic_of(values, speed))
    runs = _confirmed(values, plan) if values["simulate"] else []
    return _answer(values, plan, runs)


def _confirmed(values: Mapping[str, Any], plan: SizedFleet) -> list[SimulatedCapacity]:
    if plan.split is not None:
        batch = plan.need.batch.batch
        first = values["first_token"]
        split = plan.split
        return list(
            confirm_split(plan.speed, plan.known.traffic, batch, split, first_token_s=first)
        )
    return list(
        confirm(
            plan.speed,
            plan.known.traffic,
            plan.need.batch,
            plan.need.replicas,
            first_token_s=values["first_token"],
            token_budget_ms=plan.budget_ms,
            quantile=values["quantile"],
        )
    )


# --- the answer -----------------------------------------------------------------------------------


def _answer(
    values: Mapping[str, Any], plan: SizedFleet, runs: list[SimulatedCapacity]
) -> PlanAnswer:
    traffic, need = plan.known.traffic, plan.need
    surge = warm_share(values["surge"], values["start"], values["ramp"])
    spare_s = batch_on_the_spare(
        need.replicas, need.batch, plan.known.mean_requests_s, values["utilisation"]
    )
    at_peak = size_fleet(values, plan.speed, scaled(plan.known, values["surge"])).need.replicas
    warm = min(at_peak, need.replicas + round(need.replicas * surge + 0.4999))
    figures: dict[str, Any] = {
        "requests_s": traffic.requests_s,
        "mean_requests_s": plan.known.mean_requests_s,
        "replicas": need.replicas,
        "need": asdict(need),
        "token_budget_ms": plan.budget_ms,
        "alone_ms": alone_ms(plan.speed, traffic.prompt, traffic.output),
        "split": asdict(plan.split) if plan.split is not None else None,
        "batch_requests_s": spare_s,
        "surge": {"replicas_at_peak": at_peak, "warm": warm},
        "simulated": [asdict(one) for one in runs],
        **risk_figures(values, need),
    }
    tables = _tables(values, plan)
    if values["degrade"] is not None:
        figures["overload"] = rows = overload_rows(values["degrade"], plan)
        tables = (*tables, overload_table(rows, plan))
    remarks = [_speed_line(plan), _batch_line(spare_s)]
    if values["surge"] > 1:
        remarks.append(_surge_line(values, need.replicas, at_peak, warm))
    remarks += risk_remarks(values, need)
    remarks += [_simulated_line(one, values["quantile"]) for one in runs]
    if values["cost_per_hour"] is not None:
        month = need.replicas * values["cost_per_hour"] * HOURS_PER_MONTH
        figures["monthly_cost"] = month
        remarks.append(f"They cost {money(month)} a month.")
    return PlanAnswer(
        plan="capacity",
        opening=f"{traffic.requests_s:,.4g} requests/s of {traffic.prompt:,.0f} tokens in and "
        f"{traffic.output:,.0f} out, on {plan.speed.name}",
        verdict=_verdict(plan),
        tables=tables,
        remarks=tuple(remarks),
        notes=_notes(plan, runs),
        steps=_steps(values, plan),
        charts=(replicas_chart(values, plan),),
        figures=figures,
    )


def _verdict(plan: SizedFleet) -> str:
    need = plan.need
    if plan.split is not None:
        split = plan.split
        ratio = split.decode / split.prefill
        return (
            f"Run {split.prefill} replicas for prompts and {split.decode} for answers (1 to "
            f"{ratio:.1f}), {need.batch.batch} answers at once on each."
        )
    return (
        f"Run {need.replicas} replicas, {need.batch.batch} requests at once on each: busy for "
        f"{need.utilisation:.0%} of it."
    )


def _speed_line(plan: SizedFleet) -> str:
    batch = plan.need.batch
    return (
        f"One replica serves {batch.requests_s:.3g} requests/s, a token every "
        f"{batch.token_ms:.3g} ms."
    )


def _batch_line(spare_s: float) -> str:
    return f"Batch work on the spare: {spare_s:.3g} requests/s, {spare_s * 86_400:,.0f} a day."


def _surge_line(values: Mapping[str, Any], now: int, at_peak: int, warm: int) -> str:
    return (
        f"For {values['surge']:g} times the traffic within {values['ramp']:g} s: {at_peak} "
        "replicas "
        f"at its peak; keep {warm} ready, because a new one takes {values['start']:g} s "
        f"({warm - now} more than the load of now)."
    )


def _simulated_line(found: SimulatedCapacity, quantile: float) -> str:
    verdict = "meets" if found.reaches(quantile) else "misses"
    first = found.first_token_p99_s
    p99 = "" if first is None else f", first token p99 {first:.3g} s"
    part = "" if found.simulated == found.replicas else f" (a slice of {found.simulated})"
    return (
        f"Simulated {found.replicas} replicas{part}: {found.met:.2%} of {found.requests:,} "
        "requests "
        f"in time{p99}; {verdict} {quantile:g}."
    )


def _tables(values: Mapping[str, Any], plan: SizedFleet) -> tuple[PlanTable, ...]:
    rows: list[tuple[str, ...]] = []
    marked = None
    sizes = sorted({1, 8, 16, 32, 64, 128, plan.need.batch.batch} & set(range(1, 100_001)))
    for size in sizes:
        if size > plan.speed.batch_max:
            continue
        choice = batch_at(plan.speed, plan.known.traffic, size)
        if size == plan.need.batch.batch:
            marked = len(rows)
        rows.append(_batch_row(values, plan, choice))
    headings = ("batch", "step, ms", "token, ms", "requests/s", "replicas", "in time")
    tables = [PlanTable("Batches", headings, tuple(rows), marked)]
    if plan.split is not None:
        tables.append(_split_table(plan.split, plan.need.batch.batch))
    return tuple(tables)


def _batch_row(values: Mapping[str, Any], plan: SizedFleet, choice: BatchChoice) -> tuple[str, ...]:
    traffic = plan.known.traffic
    read_s = plan.speed.prefill(traffic.prompt) / 1000.0
    need = replicas_for(
        traffic,
        choice,
        wait_s=values["first_token"] - read_s,
        late_share=1.0 - values["quantile"],
        utilisation=values["utilisation"],
    )
    fast = plan.budget_ms is None or choice.token_ms <= plan.budget_ms
    return (
        str(choice.batch),
        f"{choice.step_ms:.3g}",
        f"{choice.token_ms:.3g}",
        f"{choice.requests_s:.3g}",
        str(need.replicas),
        "yes" if fast else "no",
    )


def _split_table(split: SplitNeed, batch: int) -> PlanTable:
    rows = (
        (
            "prompts",
            f"{split.prefill_offered:,.2f} busy",
            str(split.prefill_by_waiting),
            str(split.prefill_by_utilisation),
            str(split.prefill),
        ),
        (
            "answers",
            f"{split.decode_offered:,.2f} under way",
            str(split.decode_by_batch),
            str(split.decode),
            str(split.decode),
        ),
    )
    headings = ("replicas for", "on average", "at least", "by utilisation", "run")
    return PlanTable(f"Split, {batch} answers at once", headings, rows, text_columns=2)


def _notes(plan: SizedFleet, runs: list[SimulatedCapacity]) -> tuple[str, ...]:
    notes = [
        (
            f"Speed of the engine: {plan.speed.source}. The formula takes mean lengths, random "
            "arrivals "
            "and one queue for all places; bursts and long answers wait longer."
        )
    ]
    if plan.budget_ms is not None:
        notes.append(
            "The objective for a whole answer is one for its tokens here: an answer of mean length "
            "meets it if each further token comes in time. Longer answers take longer, with any "
            "fleet."
        )
    if plan.split is not None:
        split = plan.split
        notes.append(
            f"A request moves {split.transfer_bytes / 1e6:.1f} MB of KV cache in "
            f"{split.transfer_s * 1e3:.2f} ms; all of them {split.transfer_bytes_s / 1e9:,.0f} "
            "GB/s. "
            "A decode replica that dies takes answers under way with it: plan spares for both."
        )
    if runs and not runs[-1].reaches(0.0):
        notes.append("The simulation answered nothing: look at it with 'holdfast simulate'.")
    return tuple(notes)


def _steps(values: Mapping[str, Any], plan: SizedFleet) -> tuple[PlanStep, ...]:
    need, traffic, batch = plan.need, plan.known.traffic, plan.need.batch
    read, write = alone_ms(plan.speed, traffic.prompt, traffic.output)
    steps = [
        plan.known.step,
        PlanStep(
            "one request alone",
            "prompt x ms per token + output x step",
            f"{read:g} + {write:g} = {read + write:g} ms",
        ),
    ]
    if plan.budget_ms is not None:
        numbers = (
            f"({values['latency']:g} - {values['first_token']:g}) s / ({traffic.output:g} - 1) = "
            f"{plan.budget_ms:.4f} ms"
        )
        steps.append(
            PlanStep("budget of a token", "(latency - first token) / (output - 1)", numbers)
        )
    steps += [
        PlanStep(
            "a batch",
            "step = a + c x B + b x KV; token = step + B x prefill / output",
            f"B = {batch.batch}: step {batch.step_ms:.4g} ms, token {batch.token_ms:.4g} ms, "
            f"{batch.requests_s:.4g} requests/s",
        ),
        PlanStep(
            "places needed",
            "rate x service time (Little); Erlang C for the wait",
            f"{traffic.requests_s:,.4g} x {batch.service_s:.4g} s = {need.offered:,.2f} under way; "
            f"{need.by_waiting} replicas by waiting, {need.by_utilisation} by utilisation",
        ),
        waiting_step(need),
    ]
    return tuple(steps)


_SPELLED: Final = {
    "capacity.latency": "latency",
    "traffic.rate": "rate",
    "traffic.answer_s": "speed",
    "speed.step_ms": "step_ms",
    "speed.batch_max": "batch",
    "overload.utilisation": "utilisation",
}

CAPACITY: Final = PlanKind(
    name="capacity",
    title="Replicas for a traffic",
    fields=FIELDS,
    answer=capacity,
    missing=_missing,
    spelled=lambda field: _SPELLED.get(field, field),
)

__all__ = ["CAPACITY", "capacity"]
