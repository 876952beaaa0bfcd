import subprocess
import sys
import threading
import time

from holdfast.agent.stop_signal import StopSignal

# A signal at a random moment of a loop that does nothing but wait, a hundred times.
INTERRUPTED = """
import random, signal
from holdfast.agent.stop_signal import StopSignal
random.seed(1)
for _ in range(100):
    ending = StopSignal()
    signal.signal(signal.SIGALRM, lambda *_: ending.set())
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))
    while not ending.is_set():
        ending.wait(0)
"""


def test_a_handler_may_say_it_at_any_moment():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], timeout=30, check=False)
    assert done.returncode == 0


def test_whoever_waits_hears_of_it_at_once():
    ending = StopSignal()
    threading.Timer(0.05, ending.set).start()
    began = time.monotonic()
    ending.wait(30.0)
    assert ending.is_set()
    assert time.monotonic() - began < 10
    ending.set()  # again: nothing
    ending.wait(30.0)
    assert time.monotonic() - began < 10


def test_nobody_waits_longer_than_asked():
    ending = StopSignal()
    ending.wait(0.01)
    ending.wait(-1.0)
    assert not ending.is_set()
