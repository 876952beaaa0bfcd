"""Plans: shapes, traces and files become requests; bad ones get a plain answer."""

import itertools
import json

import pytest

from holdfast.core.types import ConfigError
from holdfast.loadtest.prompts import PromptWriter, TokenRule
from holdfast.loadtest.request_plan import SHAPES, BodyForm, RequestPlan
from holdfast.sim.workload import Lengths, Workload

FORM = BodyForm("m")


def first(plan, count, salt=0):
    return list(itertools.islice(plan.requests(salt), count))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_has_the_lengths_that_it_says(shape):
    _, prompt, output = SHAPES[shape]
    plan = RequestPlan(Workload(rate=10.0, prompt=prompt, output=output), FORM)
    drawn = first(plan, 300)
    assert sum(r.prompt_tokens for r in drawn) / 300 == pytest.approx(prompt.mean, rel=0.25)
    assert sum(r.output_tokens for r in drawn) / 300 == pytest.approx(output.mean, rel=0.25)
    assert drawn[-1].at_s == pytest.approx(30.0, rel=0.25)


def test_a_body_streams_tells_usage_and_has_its_length():
    plan = RequestPlan(Workload(prompt=Lengths(30, 0.0), output=Lengths(7, 0.0)), FORM)
    body = json.loads(first(plan, 1)[0].body)
    assert body["max_tokens"] == 7
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["ignore_eos"] is True
    assert len(body["messages"][0]["content"].split()) == 30
    plain = json.loads(BodyForm("m", chat=False, ignore_eos=False).body("a b", 3))
    assert plain["prompt"] == "a b"
    assert "ignore_eos" not in plain


def test_the_same_seed_asks_the_same_and_steps_ask_others():
    def plan():
        return RequestPlan(Workload(), FORM, seed=3)

    assert first(plan(), 20) == first(plan(), 20)
    assert first(plan(), 20) != first(plan(), 20, salt=1)


def test_no_two_prompts_begin_alike():
    writer = PromptWriter(1)
    assert len({writer.write(200)[:20] for _ in range(2_000)}) == 2_000


def test_prompts_have_as_many_tokens_as_the_probes_say():
    """A server that adds 12 tokens and makes 1.5 of a word: 16 words are 36, 112 are 180."""
    rule = TokenRule.of_probes((16, 36), (112, 180))
    assert (rule.base, rule.per_word) == (12.0, 1.5)
    writer = PromptWriter(1, rule)
    assert len(writer.write(312).split()) == 200
    assert len(writer.write(1).split()) == 1
    assert TokenRule.of_probes((16, 5), (112, 5)) == TokenRule()  # it counts something else
    assert len(PromptWriter(1).write(150_000).split()) == 150_000


def test_blocks_of_a_trace_with_the_same_number_have_the_same_words():
    writer = PromptWriter(1)
    one, two = writer.write(1_500, (7, 8, 9)), writer.write(1_500, (7, 8, 10))
    words = [text.split() for text in (one, two)]
    assert [len(w) for w in words] == [1_500, 1_500]
    assert words[0][:1_024] == words[1][:1_024]
    assert words[0][1_024:] != words[1][1_024:]


def trace(tmp_path, *rows):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_trace_keeps_its_times_and_lengths(tmp_path):
    rows = [
        {"timestamp": 5_000 + 500 * i, "input_length": 40 + i, "output_length": 3} for i in range(4)
    ]
    plan = RequestPlan(Workload(trace=str(trace(tmp_path, *rows)), speed=2.0), FORM)
    asked = list(plan.requests())
    assert [r.at_s for r in asked] == [0.0, 0.25, 0.5, 0.75]
    assert [r.prompt_tokens for r in asked] == [40, 41, 42, 43]
    assert plan.timed
    assert plan.rate is None


def test_a_trace_with_negative_lengths_is_refused_at_its_line(tmp_path):
    path = trace(
        tmp_path,
        {"timestamp": 0, "input_length": 4, "output_length": 3},
        {"timestamp": 1, "input_length": -4, "output_length": 3},
    )
    plan = RequestPlan(Workload(trace=str(path)), FORM)
    with pytest.raises(ConfigError, match=r"line 2 of .*-4 tokens"):
        list(plan.requests())


def written(tmp_path, *lines):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_a_file_of_requests_is_sent_as_it_is(tmp_path):
    path = written(
        tmp_path,
        '{"prompt": "one", "max_tokens": 5, "at": 0.5}',
        "",
        '{"messages": [{"role": "system", "content": "two"}], "at": 1.5}',
    )
    plan = RequestPlan(Workload(), FORM, file=path)
    asked = list(plan.requests())
    assert [r.at_s for r in asked] == [0.5, 1.5]
    assert json.loads(asked[0].body)["messages"] == [{"role": "user", "content": "one"}]
    assert json.loads(asked[1].body)["messages"] == [{"role": "system", "content": "two"}]
    assert [r.output_tokens for r in asked] == [5, 128]


def test_a_file_without_times_is_asked_at_the_rate_again_and_again(tmp_path):
    path = written(tmp_path, '{"prompt": "one"}', '{"prompt": "two"}')
    plan = RequestPlan(Workload(rate=4.0, pattern="constant"), FORM, file=path)
    asked = first(plan, 5)
    assert [r.at_s for r in asked] == [0.25, 0.5, 0.75, 1.0, 1.25]
    assert [b"one" in r.body for r in asked] == [True, False, True, False, True]
    assert not plan.timed


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["{"], "line 1"),
        (['{"max_tokens": 5}'], "line 1 of .* neither prompt nor messages"),
        (['{"prompt": "a", "max_tokens": 0}'], "max_tokens below 1"),
        (['{"prompt": "a", "at": 2}', '{"prompt": "b", "at": 1}'], "line 2 of .* back in time"),
        (['{"prompt": 3}'], "line 1"),
        ([""], "holds no request"),
    ],
)
def test_a_bad_file_is_refused_at_its_line(tmp_path, lines, problem):
    with pytest.raises(ConfigError, match=problem):
        RequestPlan(Workload(), FORM, file=written(tmp_path, *lines))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        RequestPlan(Workload(), FORM, file=tmp_path / "none")
