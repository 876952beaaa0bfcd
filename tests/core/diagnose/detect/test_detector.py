from holdfast.core.diagnose.detect.detector import REPEAT, Pace


def test_a_sign_is_said_at_once_and_then_once_in_a_while() -> None:
    pace = Pace()
    said = [now for now in range(0, 3 * REPEAT, REPEAT // 10) if pace.due("r1", now)]
    assert said == [0, REPEAT, 2 * REPEAT]


def test_what_was_over_is_news_again_and_others_have_their_own_pace() -> None:
    pace = Pace()
    assert pace.due("r1", 0)
    assert pace.due("r2", 1)
    assert not pace.due("r1", 2)
    pace.over("r1")
    pace.over("never said")
    assert pace.due("r1", 3)
