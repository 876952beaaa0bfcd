"""An event loop whose time passes at once: where it would wait, its clock jumps."""

import asyncio
import selectors


class _Jumping(selectors.DefaultSelector):
    jump = None

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everybody waits, and nothing will ever happen")
        if not ready and timeout:
            self.jump(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """For tests without threads and sockets: ten minutes take a millisecond."""

    def __init__(self):
        selector = _Jumping()
        super().__init__(selector)
        self._virtual_s = 1_000.0
        selector.jump = self._jump

    def _jump(self, seconds):
        self._virtual_s += seconds

    def time(self):
        return self._virtual_s


def clock():
    """Nanoseconds of the running loop, as the core wants them."""
    return round(asyncio.get_running_loop().time() * 1_000_000_000)


def run(main):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
