"""``bench/routing_trace.py`` on a trace that is made here: reuse, waits, and bad input."""

import json
from random import Random

import pytest

SYSTEM = [0]  # every prompt begins alike
BLOCK = 512


@pytest.fixture
def routing_trace(bench):
    return bench("routing_trace")


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Conversations that come back with longer prompts, in bursts, among prompts of one turn."""
    path = tmp_path_factory.mktemp("trace") / "chats.jsonl"
    draw = Random(7)
    rows, number = [], 1
    talks: list[list[int]] = []
    for burst in range(60):
        for _ in range(10):
            if talks and draw.random() < 0.6:
                blocks = talks[draw.randrange(max(0, len(talks) - 30), len(talks))]
            else:
                blocks = list(SYSTEM)
                talks.append(blocks)
            for _ in range(draw.choice([1, 2, 4, 20])):
                blocks.append(number)
                number += 1
            length = len(blocks) * BLOCK - draw.randrange(BLOCK)
            row = {"timestamp": burst * 3000, "input_length": length}
            rows.append(row | {"output_length": draw.randrange(20, 200), "hash_ids": list(blocks)})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def figures_of(routing_trace, capsys, trace, *more):
    routing_trace.main([str(trace), "--json", *more])
    return json.loads(capsys.readouterr().out)


def test_affinity_reuses_more_than_turns_and_nobody_waits_longer(routing_trace, capsys, trace):
    told = figures_of(
        routing_trace,
        *(capsys, trace, "--policies", "round_robin,prefix_affinity", "--blocks", "150,600"),
    )
    assert told["requests"] == 600
    assert 0.3 < told["ceiling"] < 0.9
    for rows in told["by_blocks"].values():
        turns, affinity = rows["round_robin"], rows["prefix_affinity"]
        assert turns["reuse"] + 0.1 < affinity["reuse"] <= told["ceiling"]
        assert affinity["ttft_mean_s"] < turns["ttft_mean_s"]
        assert affinity["ttft_p99_s"] < 1.1 * turns["ttft_p99_s"]
        assert turns["not_answered"] == affinity["not_answered"] == 0
        assert 1.0 <= affinity["balance"] < 1.5
    small, large = told["by_blocks"].values()
    assert small["round_robin"]["reuse"] < large["round_robin"]["reuse"]


def test_the_table_names_each_policy_beside_round_robin(routing_trace, capsys, trace):
    more = ["--policies", "round_robin,token_work", "--blocks", "200", "--requests", "60"]
    routing_trace.main([str(trace), *more])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("chats.jsonl: 60 requests, ")
    assert "200 blocks of 512 tokens per replica" in lines
    (token_work,) = (line for line in lines if line.startswith("  token_work"))
    assert ", p99 " in token_work


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ('{"timestamp": 0, "input_length": -5, "output_length": 1}\n', [], "-5 tokens"),
        ("what is this\n", [], "line 1 of"),
        ("", [], "has no requests"),
        (None, [], "give the path of a trace file"),
        ("", ["--replicas", "0"], "--replicas is 0; use a number above 0"),
        ("", ["--policies", "best"], "'best' is no policy; use some of power_of_two"),
        ("", ["--blocks", "0"], "use whole numbers above 0"),
    ],
)
def test_bad_input_is_told_and_nothing_runs(routing_trace, capsys, tmp_path, text, more, said):
    path = tmp_path / "trace.jsonl"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        routing_trace.main([str(path), *more])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
