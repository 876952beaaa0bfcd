"""The story of Parler in a browser: a real control over a fake AWS account, one incident.

``tests/e2e/test_joined_aws.py`` holds the terminal and JSON against the same story.
"""

import re
import sys
from pathlib import Path

import pytest

STAGE = str(Path(__file__).resolve().parents[2] / "e2e")


@pytest.fixture(scope="module")
def story(browser, tmp_path_factory):  # without a browser nothing is built
    if STAGE not in sys.path:
        sys.path.append(STAGE)
    import aws_stage  # noqa: PLC0415 found by the path above; moto takes a second

    with aws_stage.surroundings(tmp_path_factory.mktemp("state")):
        stage = aws_stage.Stage(tmp_path_factory.mktemp("parler"), aws_stage.STUDIO)
        try:
            stage.start()
            told = aws_stage.Parler(stage)
            told.view = told.play()
            yield told
        finally:
            stage.close()


@pytest.fixture
def url(story):
    return story.stage.admin


@pytest.fixture
def incident(story):
    (row,) = story.view["incidents"]
    return row


def section(page, title):
    return page.locator(f"section:has(> h2:text-is('{title}'))")


def links(rows, incident):
    """How many of these rows lead to the incident."""
    return rows.locator(f"a[href='/ui/incidents/{incident['id']}']").count()


def row_of(page, title, name):
    """The row of a table that begins with this name."""
    whole = re.compile(f"^{re.escape(name)}$")
    return (
        section(page, title)
        .locator("tbody tr")
        .filter(has=page.locator("th").filter(has_text=whole))
    )


def test_the_overview_shows_it_once_and_each_row_leads_to_it(open_page, url, story, incident):
    page = open_page(f"{url}/ui/")
    page.wait_for_selector("text=1 open incident")
    assert "bad" in page.locator(".verdict").get_attribute("class")
    assert page.locator(".verdict").inner_text() == "1 open incident"  # others run in their place
    assert page.locator(".tile:has-text('replicas ready') dd").first.inner_text() == "5/5"
    assert "22G/62G" in row_of(page, "Groups", "marigold-cpu").inner_text()
    found = section(page, "Incidents").locator("tbody tr:visible")
    found.first.wait_for()
    assert found.count() == 1
    assert "undersized of parler-tts" in found.inner_text()
    assert "runtime" in found.inner_text()
    dead = {task.id for task in story.dead}
    for title, names in (
        ("Models", {"parler-tts"}),
        ("Backlog", {"parler-tts-requests"}),
        ("Groups", {"marigold-cpu"}),
        ("Replicas", dead),
    ):
        for name in names:
            assert links(row_of(page, title, name), incident) == 1, name
        assert links(section(page, title), incident) == len(names), title
    page.click("summary:has-text('Hosts')")
    hosts = page.locator("details:has(summary:has-text('Hosts')) tbody tr")
    hosts.first.wait_for()
    assert links(hosts, incident) == len(story.hosts())


def test_a_row_opens_the_incident_with_cause_evidence_consequences_and_fix(
    open_page, url, story, incident
):
    page = open_page(f"{url}/ui/")
    row = row_of(page, "Backlog", "parler-tts-requests")
    row.locator(f"a:text-is('{incident['id']}')").click()
    page.wait_for_selector(f"h1:has-text('{incident['id']}: undersized of parler-tts')")
    assert page.url == f"{url}/ui/incidents/{incident['id']}"
    assert "runtime failure" in page.locator(".lead").inner_text()
    assert "reservation 1.1 GB" in section(page, "What to do").inner_text()
    assert "undersized, a runtime failure of parler-tts" in section(page, "Cause").inner_text()
    known = section(page, "How we know").inner_text()
    for text in ("killed for memory", "memory reservation 1.1 GB, footprint at least 1.1 GB"):
        assert text in known
    followed = section(page, "What followed from it").inner_text()
    for text in ("the queue of parler-tts grew", "dead letter of parler-tts"):
        assert text in followed
        assert text not in known
    for task in story.dead:
        assert page.locator(f".links a[href='/ui/replicas/{task.id}']").count() == 1


def test_a_replica_that_was_killed_says_why_and_leads_to_it(open_page, url, story, incident):
    page = open_page(f"{url}/ui/replicas/{story.dead[0].id}")
    page.wait_for_selector(f"a:text-is('{incident['id']}')")
    assert "killed for memory (exit code 137)" in page.locator("main").inner_text()
    page.wait_for_selector("pre.log:has-text('Its platform keeps its log, as parler-tts/')")
