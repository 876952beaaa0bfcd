from holdfast.agent.outbox import AGE_MAX_S, KEPT_MAX, Outbox
from holdfast.core.diagnose.facts import Mark
from holdfast.sources.agent_report import THINGS_MAX, ReportedGpuFault, ReportedLine, ReportedPhase


def line(box):
    return ReportedLine(box.next_number(), 0, "r", Mark.WATCHDOG, "h:1")


def test_things_wait_in_order_with_their_age():
    box = Outbox()
    box.put(line(box), 10.0)
    box.put(ReportedPhase(box.next_number(), 0, "r", "loading"), 11.0)
    box.put(ReportedGpuFault(box.next_number(), 0, "r", 79, True, "x"), 12.0)
    assert box.waiting(13.0) == [
        ReportedLine(1, 3.0, "r", Mark.WATCHDOG, "h:1"),
        ReportedPhase(2, 2.0, "r", "loading"),
        ReportedGpuFault(3, 1.0, "r", 79, True, "x"),
    ]
    assert len(box) == 3


def test_what_was_told_is_gone_and_what_came_meanwhile_stays():
    box = Outbox()
    box.put(line(box), 0.0)
    sent = box.waiting(1.0)
    box.put(line(box), 1.0)
    box.told(sent)
    assert [thing.number for thing in box.waiting(2.0)] == [2]
    assert box.dropped == 0


def test_there_is_room_for_so_many_and_the_oldest_go():
    box = Outbox()
    for _ in range(KEPT_MAX + 7):
        box.put(line(box), 0.0)
    assert (len(box), box.dropped) == (KEPT_MAX, 7)
    waiting = box.waiting(1.0)
    assert [waiting[0].number, len(waiting)] == [8, THINGS_MAX]


def test_what_is_too_old_to_explain_anything_goes_too():
    box = Outbox()
    box.put(line(box), 0.0)
    box.put(line(box), AGE_MAX_S)
    assert [thing.number for thing in box.waiting(AGE_MAX_S + 1)] == [2]
    assert box.dropped == 1


def test_what_control_never_takes_is_counted_as_lost():
    box = Outbox()
    box.put(line(box), 0.0)
    box.refused(box.waiting(0.0))
    assert (len(box), box.dropped) == (0, 1)
