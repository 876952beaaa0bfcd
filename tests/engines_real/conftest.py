"""These tests start real engines of hundreds of megabytes, so only ``make test-engines`` has them.

Its virtual environment holds the engines; elsewhere nothing here is collected, and asking for this
folder alone then fails for want of tests instead of passing. What tests measured on their way is
shown at the end.
"""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("pytriton") else ["test_*.py"]


def pytest_terminal_summary(terminalreporter):
    rows = [
        (report.nodeid.partition("::")[2], name, value)
        for report in terminalreporter.getreports("passed")
        if report.when == "call"
        for name, value in report.user_properties
    ]
    if rows:
        terminalreporter.section("measured")
    for test, name, value in rows:
        terminalreporter.write_line(f"{value:8.3f}  {name}  {test}")
