"""How long an upload has, by what has come of it."""

from holdfast.core.intake.upload_pace import UploadPace


def test_a_trickle_has_little_more_than_its_grace() -> None:
    pace = UploadPace(grace_s=60.0, bytes_per_s=1_000.0)
    assert pace.left_s(0, 59.0) == 1.0
    assert pace.left_s(1, 61.0) < 0


def test_who_sends_faster_than_the_slowest_line_is_never_late() -> None:
    pace = UploadPace(grace_s=60.0, bytes_per_s=1_000.0)
    assert all(pace.left_s(1_001 * s, s) > 60.0 for s in range(1, 100_000, 997))
    assert pace.left_s(1_000_000, 1_060.0) == 0.0
