"""What differs between two pictures, put upon the first, gives the second."""

from dataclasses import replace

import orjson
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.view.snapshot import ReplicaRow, Snapshot, SourceRow
from holdfast.core.view.snapshot_changes import changes

ROWS = st.lists(
    st.builds(
        ReplicaRow,
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["m", "n"]),
        st.sampled_from(["ready", "dead"]),
        inflight=st.integers(0, 3),
        kv_used=st.none() | st.floats(0, 1),
        incidents=st.lists(st.sampled_from(["inc-1", "inc-2"]), max_size=2).map(tuple),
    ),
    max_size=4,
).map(tuple)
PICTURES = st.builds(
    Snapshot,
    st.floats(0, 1e9),
    replicas=ROWS,
    notes=st.lists(st.text(max_size=5), max_size=2).map(tuple),
    totals=st.dictionaries(st.sampled_from(["requests_s", "gateways"]), st.integers(0, 9)),
)


def plain(thing):
    return orjson.loads(orjson.dumps(thing))


def applied(before, differing):
    """As a client does it, with what goes over the wire."""
    kept, told = plain(before), plain(differing)
    assert kept["version"] == told["since"]
    kept |= told["head"] | told["whole"]
    for table, places in told["rows"].items():
        for place, fields in places.items():
            kept[table][int(place)] |= fields
    return kept


@given(PICTURES, PICTURES)
def test_changes_put_upon_the_first_give_the_second(before, after):
    after = replace(after, version=before.version + 1)
    assert applied(before, changes(before, after)) == plain(after)


def test_only_what_differs_is_told():
    first = Snapshot(
        1.0,
        version=4,
        replicas=(ReplicaRow("a", "m", "ready", inflight=1), ReplicaRow("b", "m", "ready")),
        sources=(SourceRow("aws", "aws", "asg", 1.0),),
    )
    second = replace(
        first, version=5, replicas=(replace(first.replicas[0], inflight=2), first.replicas[1])
    )
    told = changes(first, second)
    assert told["since"] == 4
    assert told["head"]["version"] == 5
    assert told["rows"] == {"replicas": {"0": {"inflight": 2}}}
    assert told["whole"] == {}


def test_a_table_of_another_length_is_told_whole():
    first = Snapshot(1.0, replicas=(ReplicaRow("a", "m", "ready"),))
    told = changes(first, replace(first, replicas=()))
    assert (told["rows"], told["whole"]) == ({}, {"replicas": ()})
