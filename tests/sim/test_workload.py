from itertools import islice, pairwise, takewhile
from math import sqrt
from pathlib import Path
from random import Random

import pytest

from holdfast.core.types import SECOND, ConfigError, Priority, Request, nanos
from holdfast.sim.random_streams import stream
from holdfast.sim.workload import Lengths, Workload, WorkloadTenant, _times, arrivals

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
HOUR = 3600 * SECOND


def first(count: int, workload: Workload, seed: int = 0) -> list[tuple[Request, int]]:
    return list(islice(arrivals(workload, "m", seed), count))


def times(workload: Workload, until: int) -> list[int]:
    """The arrivals alone: drawing the lengths too would take most of the time."""
    return list(takewhile(lambda time: time <= until, _times(workload, stream(0, "w", "arrival"))))


# --- lengths --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lengths",
    [
        Lengths(mean=500.0, cv=1.0),
        Lengths(mean=500.0, cv=0.3),
        Lengths(mean=40.0, cv=0.8),
        Lengths(mean=500.0, cv=2.0, law="hyperexponential"),
        Lengths(mean=300.0, cv=1.0, law="exponential"),
        Lengths(mean=3.0, cv=1.0, law="exponential"),
    ],
    ids=repr,
)
def test_lengths_have_the_mean_and_the_spread_they_were_given(lengths: Lengths) -> None:
    count = 40_000
    draw = lengths.sampler(Random(11))
    drawn = [draw() for _ in range(count)]
    mean = sum(drawn) / count
    # On whole tokens the exponential law is geometric, a little less spread than its cv of 1.
    cv = sqrt(1.0 - 1.0 / lengths.mean) if lengths.law == "exponential" else lengths.cv
    deviation = cv * lengths.mean
    assert abs(mean - lengths.mean) < 4 * deviation / sqrt(count)
    spread = sqrt(sum((value - mean) ** 2 for value in drawn) / count)
    assert spread == pytest.approx(deviation, rel=0.07)  # heavy tails: the spread is less sure
    assert min(drawn) >= 1
    assert all(isinstance(value, int) for value in drawn[:100])


@pytest.mark.parametrize("lengths", [Lengths(mean=7.4, law="constant"), Lengths(mean=7.4, cv=0.0)])
def test_lengths_without_spread_are_all_alike(lengths: Lengths) -> None:
    draw = lengths.sampler(Random(1))
    assert {draw() for _ in range(50)} == {7}


@pytest.mark.parametrize("law", ["lognormal", "exponential", "hyperexponential"])
def test_longer_draws_are_cut_at_the_maximum(law: str) -> None:
    draw = Lengths(mean=100.0, cv=2.0, law=law, maximum=150).sampler(Random(1))
    drawn = [draw() for _ in range(2_000)]
    assert max(drawn) == 150
    assert drawn.count(150) > 100


def test_an_exponential_law_with_a_mean_of_one_token_is_always_one() -> None:
    draw = Lengths(mean=1.0, law="exponential").sampler(Random(1))
    assert {draw() for _ in range(100)} == {1}


def test_a_hyperexponential_law_mixes_short_and_long() -> None:
    draw = Lengths(mean=1_000.0, cv=3.0, law="hyperexponential").sampler(Random(2))
    drawn = sorted(draw() for _ in range(20_000))
    assert drawn[10_000] < 500  # most are far below the mean
    assert drawn[-200] > 8_000  # a few carry it


# --- arrivals -------------------------------------------------------------------------------------


def test_constant_arrivals_keep_their_distance() -> None:
    found = [request.arrived for request, _ in first(20, Workload(rate=4.0, pattern="constant"))]
    assert found == [SECOND // 4 * (index + 1) for index in range(20)]


def test_poisson_arrivals_have_their_rate_and_exponential_gaps() -> None:
    found = times(Workload(rate=20.0), HOUR)
    expected = 20 * 3600
    assert abs(len(found) - expected) < 4 * sqrt(expected)
    gaps = [(later - earlier) / SECOND for earlier, later in pairwise(found)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert sqrt(variance) / mean == pytest.approx(1.0, abs=0.02)
    assert sum(gap > 0.05 for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.01)


def test_bursts_come_at_their_rate_and_leave_the_mean_as_it_was() -> None:
    workload = Workload(rate=10.0, pattern="bursts", peak=4.0, period_s=60.0, burst_s=5.0)
    found = times(workload, HOUR)
    assert abs(len(found) - 36_000) < 4 * sqrt(36_000)
    inside = sum(time % nanos(60.0) < nanos(5.0) for time in found)
    assert abs(inside - 10 * 4 * 5 * 60) < 4 * sqrt(10 * 4 * 5 * 60)
    assert workload.rate_at(61.0) == 40.0
    assert workload.rate_at(66.0) == pytest.approx(10 * (60 - 4 * 5) / 55)


def test_between_bursts_that_carry_everything_nobody_comes() -> None:
    workload = Workload(rate=10.0, pattern="bursts", peak=12.0, period_s=60.0, burst_s=5.0)
    found = times(workload, HOUR)
    assert all(time % nanos(60.0) < nanos(5.0) for time in found)
    assert abs(len(found) - 36_000) < 4 * sqrt(36_000)


def test_the_time_of_day_moves_the_rate_and_not_the_mean() -> None:
    workload = Workload(rate=10.0, pattern="diurnal", peak=1.8, period_s=600.0)
    found = times(workload, HOUR)  # six whole days of ten minutes
    assert abs(len(found) - 36_000) < 4 * sqrt(36_000)
    quarters = [0] * 4
    for time in found:
        quarters[int(time % nanos(600.0) // nanos(150.0))] += 1
    # Over a quarter of a day the cosine averages to 2/pi around noon and midnight, and cancels out
    # in the rising and the falling half between them.
    low, high = 10 * (1 - 0.8 * 2 / 3.1416), 10 * (1 + 0.8 * 2 / 3.1416)
    for quarter, expected in enumerate((low, high, high, low)):
        assert quarters[quarter] == pytest.approx(expected * 900, rel=0.05)
    assert workload.rate_at(0.0) == pytest.approx(2.0)
    assert workload.rate_at(300.0) == pytest.approx(18.0)


def test_a_steady_workload_has_one_rate() -> None:
    assert Workload(rate=7.0).rate_at(123.0) == 7.0


def test_requests_carry_their_lengths_and_numbers() -> None:
    workload = Workload(
        prompt=Lengths(mean=50, law="constant"), output=Lengths(mean=9, law="constant")
    )
    found = list(islice(arrivals(workload, "large", 3, first_id=1, id_step=2), 4))
    assert [request.id for request, _ in found] == [1, 3, 5, 7]
    for request, output in found:
        assert (request.model, request.prompt_tokens, request.max_tokens) == ("large", 50, 9)
        assert output == 9
        assert (request.tenant, request.priority) == ("default", Priority.INTERACTIVE)


def test_tenants_come_in_proportion_to_their_shares_with_their_priority() -> None:
    tenants = (WorkloadTenant("a", 3.0), WorkloadTenant("b", 1.0, batch=True))
    found = first(8_000, Workload(tenants=tenants))
    ours = [request for request, _ in found if request.tenant == "a"]
    assert abs(len(ours) - 6_000) < 4 * sqrt(8_000 * 0.75 * 0.25)
    assert all(request.priority is Priority.INTERACTIVE for request in ours)
    others = [request for request, _ in found if request.tenant == "b"]
    assert all(request.priority is Priority.BATCH for request in others)
    assert len(ours) + len(others) == 8_000


# --- one seed, one workload -----------------------------------------------------------------------


def told(workload: Workload, seed: int = 0) -> list[tuple[int, int, int, str]]:
    return [
        (request.arrived, request.prompt_tokens, output, request.tenant)
        for request, output in first(300, workload, seed)
    ]


@pytest.mark.parametrize("pattern", ["poisson", "constant", "bursts", "diurnal"])
def test_one_seed_gives_one_workload(pattern: str) -> None:
    workload = Workload(pattern=pattern, peak=1.5)
    assert told(workload, 5) == told(workload, 5)
    assert told(workload, 5) != told(workload, 6)


def test_another_law_of_answers_leaves_arrivals_prompts_and_tenants_as_they_were() -> None:
    tenants = (WorkloadTenant("a"), WorkloadTenant("b"))
    plain = told(Workload(tenants=tenants))
    other = told(Workload(tenants=tenants, output=Lengths(mean=20.0, law="exponential")))
    assert [row[:2] + row[3:] for row in plain] == [row[:2] + row[3:] for row in other]
    assert [row[2] for row in plain] != [row[2] for row in other]


def test_more_tenants_change_neither_arrivals_nor_lengths() -> None:
    alone = told(Workload())
    shared = told(Workload(tenants=(WorkloadTenant("a"), WorkloadTenant("b"))))
    assert [row[:3] for row in alone] == [row[:3] for row in shared]


def test_two_models_of_one_seed_have_arrivals_of_their_own() -> None:
    one = [request.arrived for request, _ in islice(arrivals(Workload(), "one", 1), 20)]
    two = [request.arrived for request, _ in islice(arrivals(Workload(), "two", 1), 20)]
    assert one != two


# --- traces ---------------------------------------------------------------------------------------

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:47.6805901,396,109
2023-11-16 18:15:50,2,0
"""

MOONCAKE = """\
{"timestamp": 500, "input_length": 100, "output_length": 20, "hash_ids": [0, 14]}
{"timestamp": 750, "input_length": 30, "output_length": 1}
"""


def read(path: Path, **workload: object) -> list[tuple[Request, int]]:
    return list(arrivals(Workload(trace=str(path), **workload), "m", 0))


def test_an_azure_trace_is_replayed_from_its_first_request_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    found = read(path)
    assert [request.arrived for request, _ in found] == [0, SECOND + 100, 3_319_410_000]
    assert [request.prompt_tokens for request, _ in found] == [374, 396, 2]
    assert [request.max_tokens for request, _ in found] == [44, 109, 0]
    assert [output for _, output in found] == [44, 109, 1]  # an answer has a token


def test_a_mooncake_trace_brings_the_blocks_of_its_prompts(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    found = read(path)
    assert [request.arrived for request, _ in found] == [0, SECOND // 4]
    assert [request.prefix for request, _ in found] == [(0, 14), ()]
    assert [(request.prompt_tokens, output) for request, output in found] == [(100, 20), (30, 1)]


def test_a_trace_may_be_replayed_faster_and_for_several_tenants(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    tenants = (WorkloadTenant("a", 1e9), WorkloadTenant("b", 1.0, batch=True))
    found = read(path, speed=2.0, tenants=tenants)
    assert [request.arrived for request, _ in found] == [0, SECOND // 8]
    assert {request.tenant for request, _ in found} == {"a"}


BAD_LINES = [
    ("trace.csv", AZURE + "yesterday,5,5\n", 5, "ValueError"),
    ("trace.csv", AZURE + "2023-11-16 18:15:51.5,5\n", 5, "TypeError"),
    ("trace.csv", AZURE + "2023-11-16 18:15:51.5,5,many\n", 5, "ValueError"),
    ("trace.csv", AZURE + "2023-11-16 18:15:51.5,-5,1\n", 5, "-5 tokens"),
    ("trace.csv", AZURE + "\n\n2023-11-16 18:15:51.5,5,x\n", 7, "ValueError"),
    ("trace.csv", "time,in,out\n1,2,3\n", 2, "KeyError: 'TIMESTAMP'"),
    ("trace.csv", "ContextTokens,TIMESTAMP\n5\n", 2, "AttributeError"),
    ("trace.jsonl", MOONCAKE + "{not json}\n", 3, "JSONDecodeError"),
    ("trace.jsonl", MOONCAKE + "[1, 2]\n", 3, "TypeError"),
    ("trace.jsonl", '{"timestamp": 1, "input_length": 5}\n', 1, "KeyError: 'output_length'"),
    ("trace.jsonl", MOONCAKE.replace("750", "1e999"), 2, "OverflowError"),
    ("trace.jsonl", MOONCAKE.replace("30", "-1"), 2, "-1 tokens"),
    ("trace.jsonl", MOONCAKE.replace("[0, 14]", "null"), 1, "TypeError"),
]


@pytest.mark.parametrize(("name", "text", "line", "why"), BAD_LINES)
def test_a_bad_line_of_a_trace_is_named(
    tmp_path: Path, name: str, text: str, line: int, why: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert caught.value.field == "workload.trace"
    assert f"line {line} of {path}" in caught.value.problem
    assert why in caught.value.problem
    assert caught.value.fix == "use an Azure CSV or a Mooncake JSONL trace"


def test_what_comes_before_a_bad_line_is_still_replayed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + "broken\n")
    source = arrivals(Workload(trace=str(path)), "m", 0)
    assert len(list(islice(source, 3))) == 3
    with pytest.raises(ConfigError):
        next(source)


@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl"])
def test_a_trace_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="No such file or directory") as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in caught.value.problem
    assert caught.value.fix == "give the path of a trace file"


@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl"])
def test_a_trace_that_is_not_text_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xff\xfe\x00 no text at all \x81")
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        read(path)
    assert str(path) in caught.value.problem


def test_a_trace_that_goes_back_in_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE + MOONCAKE)
    with pytest.raises(ConfigError, match=r"goes back in time 0\.250 s .*; sort the trace by time"):
        read(path)


def recorded(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"the recorded trace {name} is not here (looked in {TRACES})")
    return path


def test_the_recorded_azure_trace_reads_as_published() -> None:
    found = read(recorded("azure-2023-conv.csv"))
    assert len(found) == 19_366
    assert sum(request.prompt_tokens for request, _ in found) / 19_366 == pytest.approx(
        1154.70, abs=0.005
    )
    assert sum(output for _, output in found) / 19_366 == pytest.approx(211.13, abs=0.005)
    assert found[0][0].arrived == 0
    assert found[-1][0].arrived == pytest.approx(3_502 * SECOND, abs=SECOND)


def test_the_recorded_mooncake_trace_reads_as_published() -> None:
    found = read(recorded("mooncake-conversation.jsonl"))
    assert len(found) == 12_031
    assert sum(request.prompt_tokens for request, _ in found) / 12_031 == pytest.approx(
        12_035, abs=0.5
    )
    assert sum(output for _, output in found) / 12_031 == pytest.approx(343, abs=0.5)
    assert found[-1][0].arrived == pytest.approx(3_537 * SECOND, abs=SECOND)
    assert found[0][0].prefix[:1] == found[1][0].prefix[:1] == (0,)


# --- settings that cannot be ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (Lengths, {"mean": 0.5}, r"lengths\.mean: is 0\.5; use 1 token or more"),
        (Lengths, {"cv": -1.0}, r"lengths\.cv: is -1\.0; use 0 or more"),
        (Lengths, {"law": "gamma"}, r"lengths\.law: is 'gamma'; use constant, exponential"),
        (Lengths, {"law": "hyperexponential"}, r"lengths\.cv: is 1\.0; .* needs cv above 1"),
        (Lengths, {"maximum": 400}, r"lengths\.maximum: is 400; use at least the mean"),
        (WorkloadTenant, {"name": ""}, r"tenant\.name: is empty; name the tenant"),
        (WorkloadTenant, {"share": 0.0}, r"tenant\.share: is 0\.0; use a share above 0"),
        (Workload, {"rate": 0.0}, r"workload\.rate: is 0\.0; use requests/s above 0"),
        (Workload, {"pattern": "tidal"}, r"workload\.pattern: is 'tidal'; use one of poisson"),
        (Workload, {"period_s": 0.0}, r"workload\.period_s: is 0\.0; use seconds > 0"),
        (Workload, {"burst_s": 60.0}, r"workload\.burst_s: is 60\.0; .* below workload\.period_s"),
        (Workload, {"pattern": "bursts", "peak": 13.0}, r"workload\.peak: is 13\.0; use 1 to 12:"),
        (Workload, {"pattern": "diurnal", "peak": 2.5}, r"workload\.peak: is 2\.5; use 1 to 2:"),
        (Workload, {"tenants": ()}, r"workload\.tenants: is empty; name at least one tenant"),
        (Workload, {"speed": 0.0}, r"workload\.speed: is 0\.0; use a factor above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    config: type, values: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**values)
