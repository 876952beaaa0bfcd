import random

import pytest

from holdfast.storage.points import (
    PackedError,
    Row,
    coarser,
    joined,
    pack,
    pack_batch,
    pack_rows,
    rows_of,
    runs,
    together,
    unpack,
    unpack_batch,
    unpack_rows,
)

NOW = 1_800_000_000.0


def test_points_come_back_to_a_millisecond_whatever_the_clock_did():
    times = [NOW, NOW + 10, NOW + 10.123, NOW - 3_600, NOW + 86_400]
    values = [1.5, -2.0, 0.0, 1e30, 81_000_000_001.0]
    assert unpack(pack(times, values)) == list(zip(times, values, strict=True))


def test_a_regular_series_that_does_not_change_takes_hardly_any_room():
    packed = pack([NOW + 10 * n for n in range(90)], [3.0] * 90)
    assert len(packed) < 60


def test_points_too_far_apart_for_one_block_are_told():
    times = [NOW, NOW + 10, NOW + 40 * 86_400, NOW + 40 * 86_400 + 10]
    assert [times[part] for part in runs(times)] == [times[:2], times[2:]]
    assert list(runs([])) == []


def test_a_row_says_what_a_stretch_was():
    points = [(NOW + 10 * n, float(n)) for n in range(9)]
    first, second = rows_of(points, 60.0)
    assert first == Row(NOW, 2.5, 0.0, 5.0, 5.0, 6)
    assert second == Row(NOW + 60, 7.0, 6.0, 8.0, 8.0, 3)
    assert rows_of([], 60.0) == []


def test_a_low_after_a_high_is_seen():
    assert rows_of([(NOW, 5.0), (NOW + 1, 9.0), (NOW + 2, 1.0)], 60.0) == [
        Row(NOW, 5.0, 1.0, 9.0, 1.0, 3)
    ]


def test_rows_put_together_are_the_rows_of_all_points():
    rng = random.Random(3)
    points = [(NOW + 10 * n, rng.random()) for n in range(300)]
    cut = 137
    parts = joined(rows_of(points[:cut], 60.0), rows_of(points[cut:], 60.0))
    whole = rows_of(points, 60.0)
    assert [row.start for row in parts] == [row.start for row in whole]
    for one, other in zip(coarser(parts, 900.0), rows_of(points, 900.0), strict=True):
        assert one == pytest.approx(other)


def test_rows_that_do_not_meet_stay_apart():
    one, other = Row(0.0, 1, 1, 1, 1, 1), Row(60.0, 2, 2, 2, 2, 1)
    assert joined([one], [other]) == [one, other]
    assert joined([], [other]) == [other]
    assert joined([one], []) == [one]
    assert together(one, other._replace(start=0.0)) == Row(0.0, 1.5, 1, 2, 2, 2)


def test_rows_come_back_in_single_precision():
    rows = [Row(NOW + 60 * n, 0.1 * n, 0.0, 1.0, 0.5, n + 1) for n in range(50)]
    for one, other in zip(unpack_rows(pack_rows(rows)), rows, strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def test_a_batch_comes_back():
    ids, values = unpack_batch(pack_batch([1, 7, 20_000], [0.5, 1e38, -1.0]))
    assert (list(ids), list(values)) == ([1, 7, 20_000], [0.5, 1e38, -1.0])


@pytest.mark.parametrize("data", [b"", b"nonsense", pack([NOW], [1.0])[:-3], None, "text"])
def test_what_is_no_block_is_refused(data):
    for reading in (unpack, unpack_rows, unpack_batch):
        with pytest.raises(PackedError):
            reading(data)


def test_a_block_of_another_kind_is_refused():
    with pytest.raises(PackedError, match="bytes long"):
        unpack_rows(pack([NOW, NOW + 1], [1.0, 2.0]))
