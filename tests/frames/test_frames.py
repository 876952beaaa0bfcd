from contextlib import suppress
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.failure import Kind
from holdfast.core.messages import (
    FleetView,
    LoadReported,
    ReplicaView,
    Report,
    Seen,
    Summary,
    Tally,
)
from holdfast.core.types import Halt, Replica, State
from holdfast.frames import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    TAGS,
    BlockFrame,
    Bye,
    Challenge,
    ConfigFrame,
    DetoursFrame,
    DrainFrame,
    EpochFrame,
    ExplainAnswer,
    ExplainAsk,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    Introduction,
    LeaseFrame,
    LoadFrame,
    MetricsAnswer,
    MetricsAsk,
    MoveFrame,
    Proof,
    ReplicaViewRow,
    ReportRow,
    SeenFrame,
    SpanRow,
    StatsFrame,
    TallyRow,
    ToControl,
    ToGateway,
    TraceRow,
    TracesFrame,
    ViewFrame,
    Welcome,
    encode,
    frame_to_loads,
    frame_to_seen,
    frame_to_view,
    loads_to_frame,
    seen_to_frame,
    tag_of,
    view_to_frame,
)

ROW = ReplicaViewRow(
    "r1",
    "m",
    "2",
    "za",
    "ra",
    8,
    1.5,
    "ready",
    0.25,
    True,
    "slow start",
    "stalled",
    0.2,
    3.5,
    "h1",
    False,
)
EVERY = [
    Introduction("b/gateway-0", False, "a", b"n" * 32),
    Challenge(b"m" * 32, b"p" * 32),
    Proof(b"q" * 32),
    Welcome(7, "control-1", secret=b"key"),
    ConfigFrame(7, b'{"models": []}'),
    ViewFrame(3, 7, ["m"], [ROW]),
    LoadFrame([("m", "r1", 400, 2, 0.5), ("m", "r2", None, None, None)]),
    LoadFrame([("m", "r1", 400, 2, 0.5)], [("m", "r1")]),
    LeaseFrame({"a": 0.25}, 0.5, [("m", "r1")], 4),
    MoveFrame("m", "r1"),
    DetoursFrame({"r1": "http://127.0.0.1:1"}),
    DrainFrame(30.0),
    BlockFrame([("ab12", 3599.5)]),
    ExplainAsk("req-1", 1),
    ExplainAsk(17, 2),
    MetricsAsk(3),
    Bye("restarting"),
    Hello("gateway-1", 4242),
    SeenFrame(
        [ReportRow("m", "r1", "open", "5 in a row")], [TallyRow("m", "r1", 9, 1, 0, 3, 80)], 2
    ),
    SeenFrame(
        [],
        [TallyRow("m", "r1", 9, 1, 0, 3, 80, {"cut": 1}, 1, {"stop": 9}, [8, 9], [-0.5], [1.0])],
        0,
        [("r1", "ab12")],
        [("r1", "r2", False)],
    ),
    EpochFrame(7, accepted=False, reason="line 3: no models"),
    ExplainAnswer(1, found=True, story=b"[]"),
    MetricsAnswer(3, b"\x00\xff"),
    TracesFrame(
        [
            TraceRow(
                *("req_1", "", "a", "chat", "auto", "m", True, 200, "ok", 1, 5, 6, 9),
                [SpanRow("r1", "m", 0, 5, 6, 9, "", 70, 9, "h", 80, False, "vllm", "12" * 8)],
                "ab" * 16,
            )
        ]
    ),
    StatsFrame(
        {"requests": 10, "seconds": 0.5}, {"inflight": 3}, readiness=False, reason="draining"
    ),
]


HUGE = b"\xdd\xff\xff\xff\xff"  # an array of four billion, announced and not there
BAD_TEXT = b"\x92\xa3bye\xa1\xff"  # a frame whose text is not UTF-8


def framed(content: object) -> bytes:
    payload = msgspec.msgpack.encode(content)
    return len(payload).to_bytes(4, "big") + payload


def test_the_list_of_frames_here_is_complete() -> None:
    assert {type(frame) for frame in EVERY} == set(get_args(Frame))
    assert set(get_args(ToGateway)) | set(get_args(ToControl)) == set(get_args(Frame))
    assert len(TAGS) == len(get_args(Frame))


@pytest.mark.parametrize("frame", EVERY, ids=lambda frame: type(frame).__name__)
def test_every_frame_comes_back_as_it_was(frame: Frame) -> None:
    (back,) = FrameReader().feed(encode(frame))
    assert back == frame
    assert type(back) is type(frame)


def test_both_first_frames_name_the_protocol() -> None:
    assert Hello("g", 1).protocol == PROTOCOL
    assert Welcome(1, "c").protocol == PROTOCOL


def test_frames_come_in_order_however_the_bytes_are_split() -> None:
    stream = b"".join(encode(frame) for frame in EVERY)
    for cut in range(len(stream) + 1):
        reader = FrameReader()
        assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == EVERY
    one_by_one = FrameReader()
    got = [frame for at in range(len(stream)) for frame in one_by_one.feed(stream[at : at + 1])]
    assert got == EVERY


@given(st.lists(st.sampled_from(EVERY), max_size=8), st.lists(st.integers(1, 97), min_size=1))
def test_any_pieces_give_the_same_frames(frames: list[Frame], sizes: list[int]) -> None:
    stream = b"".join(encode(frame) for frame in frames)
    reader = FrameReader()
    got: list[Frame] = []
    turn = 0
    while stream:
        size = sizes[turn % len(sizes)]
        got += reader.feed(stream[:size])
        stream = stream[size:]
        turn += 1
    assert got == frames


# --- peers of another version --------------------------------------------------------------------


def test_a_tag_of_a_newer_peer_is_skipped_and_counted() -> None:
    reader = FrameReader()
    newer = framed(["teleport", 1, {"where": [1, 2]}])
    assert reader.feed(newer + encode(Bye("x")) + newer) == [Bye("x")]
    assert reader.skipped == 2


def test_a_field_of_a_newer_peer_is_passed_over() -> None:
    assert FrameReader().feed(framed(["move", "m", "r1", True, "later"])) == [
        MoveFrame("m", "r1", stalled=True)
    ]


def test_a_field_that_an_older_peer_lacks_has_its_default() -> None:
    assert FrameReader().feed(framed(["epoch", 3, True])) == [EpochFrame(3, accepted=True)]


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (["hello", 1, 2], "hello"),
        (["hello", "g"], "hello"),
        (["view", 1, 1, [], [["r1"]]], "view"),
        (["seen", [], [["m", "r1", "many", 0, 0, 0, 0]], 0], "seen"),
        (["lease", 0.5, 0.5, [["m"]], 1], "lease"),
        ([], "without a tag"),
        ([17, 1], "without a tag"),
        ({"hello": 1}, "without a tag"),
        ("hello", "without a tag"),
        (None, "without a tag"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_by_name(content: object, named: str) -> None:
    with pytest.raises(FrameError, match=named):
        FrameReader().feed(framed(content))


def test_the_error_tells_types_and_never_contents() -> None:
    with pytest.raises(FrameError) as refused:
        FrameReader().feed(framed(["config", "planted-secret", b"planted-secret"]))
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x93\xa5hel", b"\x91" * 100_000, HUGE, BAD_TEXT]
)
def test_bytes_that_are_no_msgpack_are_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(len(payload).to_bytes(4, "big") + payload)


def test_an_announced_size_beyond_the_bound_is_refused_before_it_comes() -> None:
    with pytest.raises(FrameError, match=str(FRAME_BYTES_MAX + 1)):
        FrameReader().feed((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
    assert FrameReader().feed(FRAME_BYTES_MAX.to_bytes(4, "big")) == []
    with pytest.raises(FrameError):
        FrameReader().feed(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def test_after_an_error_nothing_more_is_read() -> None:
    reader = FrameReader()
    with pytest.raises(FrameError) as first:
        reader.feed(b"\xff" * 8)
    with pytest.raises(FrameError) as second:
        reader.feed(encode(Bye("x")))
    assert second.value is first.value


def test_a_frame_beyond_the_bound_is_not_sent() -> None:
    with pytest.raises(FrameError, match="'config' has"):
        encode(ConfigFrame(1, bytes(FRAME_BYTES_MAX)))


@pytest.mark.parametrize("bad", [Hello("g", 1 << 70), Hello(object(), 1), Bye("\ud800")])
def test_what_cannot_be_encoded_is_a_frame_error(bad: Frame) -> None:
    with pytest.raises(FrameError, match=tag_of(bad)):
        encode(bad)


@given(st.binary(max_size=200))
def test_garbage_gives_frames_or_a_frame_error_and_nothing_else(data: bytes) -> None:
    reader = FrameReader()
    with suppress(FrameError):
        frames = reader.feed(data) + reader.feed(data)
        assert len(frames) + reader.skipped <= len(data) // 2


@given(st.sampled_from(EVERY), st.data())
def test_one_damaged_byte_gives_frames_or_a_frame_error(frame: Frame, data) -> None:
    raw = bytearray(encode(frame))
    at = data.draw(st.integers(4, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    with suppress(FrameError):
        assert len(FrameReader().feed(bytes(raw))) <= 1


# --- to and from the core ------------------------------------------------------------------------

NAME = st.text(min_size=1, max_size=12)
SHARE = st.floats(0, 1)
REPLICA = st.builds(
    Replica, NAME, NAME, NAME, NAME, NAME, st.integers(0, 1 << 40), st.floats(0.01, 1e6), NAME
)
VIEW = st.builds(
    FleetView,
    st.integers(0, 1 << 60),
    st.lists(
        st.builds(
            ReplicaView,
            REPLICA,
            st.sampled_from(State),
            SHARE,
            st.booleans(),
            st.text(),
            st.sampled_from([None, *Halt]),
            st.none() | st.floats(0, 1e6),
            st.none() | st.floats(0, 1e6),
            st.booleans(),
        ),
        max_size=6,
    ).map(tuple),
    st.lists(NAME, max_size=3).map(tuple),
    st.integers(0, 1 << 60),
)
COUNT = st.integers(0, 1 << 60)
SAMPLES = st.lists(st.floats(allow_nan=False), max_size=4).map(tuple)
TALLY = st.builds(
    Tally,
    NAME,
    NAME,
    *(COUNT, COUNT, COUNT, COUNT, COUNT),
    kinds=st.dictionaries(st.sampled_from(Kind), COUNT, max_size=3),
    fast=COUNT,
    finishes=st.dictionaries(NAME, COUNT, max_size=3),
    lengths=st.lists(COUNT, max_size=4).map(tuple),
    logprobs=SAMPLES,
    norms=SAMPLES,
    moved=st.booleans(),
    waits=SAMPLES,
    firsts=SAMPLES,
    paces=SAMPLES,
)
REPORT = st.builds(Report, NAME, NAME, NAME, st.text())


def carried(frame: Frame) -> Frame:
    (back,) = FrameReader().feed(encode(frame))
    return back


@given(VIEW)
def test_a_view_survives_the_way_exactly(view: FleetView) -> None:
    back = frame_to_view(carried(view_to_frame(view)))
    assert back == view
    hosts = [one.replica.host for one in back.replicas]
    assert hosts == [one.replica.host for one in view.replicas], "they are not compared"
    assert all(isinstance(one.state, State) for one in back.replicas)
    assert all(one.halt is None or isinstance(one.halt, Halt) for one in back.replicas)


def test_a_halt_that_only_a_newer_control_knows_is_none() -> None:
    row = msgspec.structs.replace(ROW, halt="sleeping")
    [one] = frame_to_view(ViewFrame(1, 1, [], [row])).replicas
    assert (one.halt, one.canary_s, one.ready_in_s) == (None, 0.2, 3.5)


def test_a_row_of_an_older_control_says_nothing_of_times() -> None:
    older = [*msgspec.structs.astuple(ROW)[:11]]
    [frame] = FrameReader().feed(framed(["view", 1, 1, [], [older]]))
    [one] = frame_to_view(frame).replicas
    assert (one.halt, one.canary_s, one.ready_in_s) == (None, None, None)
    assert one.replica.host == ""
    assert one.may_try


@pytest.mark.parametrize("state", State)
def test_every_state_has_its_place_on_the_wire(state: State) -> None:
    view = FleetView(1, (ReplicaView(Replica("r1", "m"), state, 1.0),))
    (one,) = frame_to_view(carried(view_to_frame(view))).replicas
    assert one.state is state


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"state": "levitating"}, "replica.state"),
        ({"weight": 0.0}, "replica.weight"),
        ({"id": ""}, "replica.id"),
    ],
)
def test_a_view_of_what_cannot_be_is_refused_by_name(change: dict, named: str) -> None:
    frame = ViewFrame(9, 1, [], [msgspec.structs.replace(ROW, **change)])
    with pytest.raises(FrameError, match=f"view 9 .*{named}"):
        frame_to_view(frame)


@given(
    st.lists(
        st.builds(
            LoadReported, NAME, NAME, st.none() | COUNT, st.none() | COUNT, st.none() | SHARE
        ),
        max_size=5,
    )
)
def test_loads_survive_the_way_and_unknown_stays_unknown(loads: list[LoadReported]) -> None:
    assert frame_to_loads(carried(loads_to_frame(loads))) == loads


def test_gateways_are_told_which_engines_read_a_prompt_and_an_older_control_tells_none() -> None:
    loads = [LoadReported("m", "r1", None, 0, 0.5), LoadReported("m", "r2", None, 0, reads=True)]
    assert frame_to_loads(carried(loads_to_frame(loads))) == loads
    earlier = LoadFrame([("m", "r1", None, 0, 0.5)])
    assert [load.reads for load in frame_to_loads(carried(earlier))] == [False]


def test_what_long_prompts_explain_survives_the_way() -> None:
    told = Tally("m", "r1", 0, 0, 0, 1, 0, unread=100_000, explained_s=100.0, prompts=100_040)
    frame = carried(seen_to_frame([Summary((told,))]))
    assert frame_to_seen(frame, "g").actions == (Summary((told,)),)


@given(st.lists(REPORT, max_size=4), st.lists(TALLY, min_size=1, max_size=4), COUNT)
def test_what_was_seen_survives_the_way(reports, tallies, dropped) -> None:
    summary = Summary(tuple(tallies))
    frame = carried(seen_to_frame([*reports, summary], dropped))
    assert frame.dropped == dropped
    assert frame_to_seen(frame, "g1") == Seen((*reports, summary), "g1")


def test_summaries_become_one_and_none_stays_none() -> None:
    first = Tally("m", "r1", 1, 0, 0, 0, 5, scores={"y.mean": (0.5, 1.5)})
    second = Tally("m", "r2", 2, 0, 0, 1, 9)
    frame = seen_to_frame([Summary((first,)), Summary((second,))])
    assert frame_to_seen(frame, "g").actions == (Summary((first, second)),)
    assert frame_to_seen(seen_to_frame([]), "g") == Seen((), "g")


def test_what_an_older_gateway_does_not_say_has_defaults() -> None:
    old = ["seen", [], [["m", "r1", 1, 0, 0, 0, 5]], 0]
    (frame,) = FrameReader().feed(framed(old))
    assert (frame.died, frame.compared) == ([], [])
    assert frame_to_seen(frame, "g").actions == (Summary((Tally("m", "r1", 1, 0, 0, 0, 5),)),)
    (welcome,) = FrameReader().feed(framed(["welcome", 1, "c", 1]))
    assert welcome.secret == b""


def test_a_kind_that_only_a_newer_gateway_knows_is_left_out() -> None:
    row = TallyRow("m", "r1", 0, 2, 0, 0, 0, {"reset": 1, "eaten_by_mice": 1})
    (summary,) = frame_to_seen(carried(SeenFrame([], [row], 0)), "g").actions
    assert summary.tallies[0].kinds == {Kind.RESET: 1}


def test_evidence_travels_beside_what_the_fleet_sees() -> None:
    frame = carried(seen_to_frame((), 0, [("r1", "ab")], [("r1", "r2", True)]))
    assert (frame.died, frame.compared) == ([("r1", "ab")], [("r1", "r2", True)])
    assert frame_to_seen(frame, "g") == Seen((), "g")
