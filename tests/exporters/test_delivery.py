import threading

from structlog.testing import capture_logs

from holdfast.exporters.delivery import Delivery, MissingExtraError


class Sink:
    """Takes bundles when it is let; fails when it is told."""

    def __init__(self):
        self.bundles = []
        self.fails = False
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Event()

    def __call__(self, bundle):
        self.entered.set()
        assert self.free.wait(10)
        if self.fails:
            raise OSError("nobody\n  listens")
        self.bundles.append(bundle)


def test_what_is_offered_is_sent_in_order_and_in_bundles():
    sink = Sink()
    sink.free.clear()
    delivery = Delivery("x", sink, room=100, bundle=4)
    delivery.offer([0])
    assert sink.entered.wait(10)
    delivery.offer(range(1, 10))
    sink.free.set()
    delivery.close(10)
    assert sink.bundles == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9]]
    assert delivery.counters()['exports_total{exporter="x",outcome="sent"}'] == 10


def test_what_finds_no_room_is_dropped_and_nobody_waits():
    sink = Sink()
    sink.free.clear()
    delivery = Delivery("x", sink, room=3, bundle=10)
    delivery.offer([0])
    assert sink.entered.wait(10)
    delivery.offer(range(1, 6))
    assert delivery.dropped == 2
    sink.free.set()
    delivery.close(10)
    assert sink.bundles == [[0], [1, 2, 3]]
    delivery.offer([9])
    assert delivery.dropped == 3  # it is closed


def test_a_failure_is_counted_and_said_once():
    sink = Sink()
    sink.fails = True
    with capture_logs() as logs:
        delivery = Delivery("x", sink, room=10, bundle=1)
        delivery.offer(range(3))
        delivery.close(10)
    assert (delivery.failed, delivery.sent) == (3, 0)
    assert [(log["event"], log["why"]) for log in logs] == [("export fails", "nobody listens")]


def test_it_is_said_when_it_works_again():
    sink = Sink()
    sink.fails = True
    done = threading.Event()

    def send(bundle):
        try:
            sink(bundle)
        finally:
            done.set()

    with capture_logs() as logs:
        delivery = Delivery("x", send, room=10, bundle=1)
        delivery.offer([1])
        assert done.wait(10)
        sink.fails = False
        delivery.offer([2])
        delivery.close(10)
    assert [log["event"] for log in logs] == ["export fails", "export works again"]


def test_a_send_that_hangs_does_not_hold_up_the_end():
    sink = Sink()
    sink.free.clear()
    delivery = Delivery("x", sink, room=10, bundle=1)
    delivery.offer([1])
    assert sink.entered.wait(10)
    delivery.close(0.01)
    sink.free.set()
    delivery.close(10)


def test_a_missing_extra_says_how_to_get_it():
    assert "pip install 'holdfast[aws]'" in str(MissingExtraError("exporters.cloudwatch", "aws"))
