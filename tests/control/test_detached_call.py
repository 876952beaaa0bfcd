import asyncio
import threading

import pytest

from holdfast.control.detached_call import detached


def test_it_returns_what_the_call_returns():
    assert asyncio.run(detached(divmod, 7, 2)) == (3, 1)


def test_it_raises_what_the_call_raises():
    with pytest.raises(ZeroDivisionError):
        asyncio.run(detached(divmod, 7, 0))


def test_foreign_code_that_wants_to_end_the_process_does_not():
    def leave():
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="SystemExit"):
        asyncio.run(detached(leave))


def test_a_call_that_hangs_holds_up_neither_the_loop_nor_its_end():
    go_on, over = threading.Event(), threading.Event()

    def hang():
        go_on.wait(20)
        over.set()

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await detached(hang)

    asyncio.run(main())  # returns while the call still hangs
    assert not over.is_set()
    go_on.set()
    assert over.wait(10)  # it came back to a loop that is closed, and nobody minds


def test_an_answer_that_comes_after_somebody_gave_up_is_dropped():
    go_on, over = threading.Event(), threading.Event()

    def late():
        go_on.wait(20)
        over.set()
        return 1

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await detached(late)
        go_on.set()
        return await detached(over.wait, 10)

    assert asyncio.run(main())
