"""Screens letter by letter. ``HOLDFAST_SCREENS=new`` writes them anew; look at what changed."""

import os
from pathlib import Path

import fleets
import pytest
from admin_port import looking_at

SCREENS = Path(__file__).parent / "screens"
SIZES = ((80, 24), (160, 50))
FLEETS = {"calm": fleets.calm, "busy": fleets.busy, "broken": fleets.broken}
VIEWS = {
    "hosts": ("2",),
    "replicas": ("3",),
    "models": ("4",),
    "queues": ("5",),
    "incidents": ("6",),
    "sources": ("7",),
    "help": ("question_mark",),
    "replica": ("3", "enter"),
    "group": ("1", "down", "down", "down", "down", "enter"),
}


def same_as_kept(name: str, lines: list[str]) -> None:
    path = SCREENS / f"{name}.txt"
    found = "\n".join(line.rstrip() for line in lines) + "\n"
    if os.environ.get("HOLDFAST_SCREENS") == "new":
        SCREENS.mkdir(exist_ok=True)
        path.write_text(found, "utf-8")
    assert path.read_text("utf-8") == found


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("fleet", FLEETS)
def test_the_overview_is_as_it_was_looked_at(fleet, size):
    async def story(seen):
        await seen.until("✓ live")
        assert all(len(line) <= size[0] for line in seen.lines)
        assert len(seen.lines) == size[1]
        same_as_kept(f"overview-{fleet}-{size[0]}x{size[1]}", seen.lines)

    looking_at(FLEETS[fleet](), story, size=size)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_each_view_of_the_broken_fleet_is_as_it_was_looked_at(size):
    async def story(seen):
        for name, keys in VIEWS.items():
            await seen.press(*keys)
            same_as_kept(f"{name}-broken-{size[0]}x{size[1]}", seen.lines)

    looking_at(fleets.broken(), story, size=size)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_an_incident_a_log_and_a_story_are_as_they_were_looked_at(size):
    async def story(seen):
        await seen.press("enter")
        await seen.until("killed for memory 31 s after it was ready")
        same_as_kept(f"incident-broken-{size[0]}x{size[1]}", seen.lines)
        await seen.press("colon")
        await seen.type("log llm-70b-0")
        await seen.until("waiting for more")
        same_as_kept(f"log-broken-{size[0]}x{size[1]}", seen.lines)
        await seen.press("colon")
        await seen.type("story req_8f3a12c4-17")
        await seen.until("STORY")
        same_as_kept(f"story-broken-{size[0]}x{size[1]}", seen.lines)

    looking_at(fleets.broken(), story, size=size)


@pytest.mark.parametrize("width", [40, 60, 79, 100, 121, 200])
def test_no_width_makes_a_mess(width):
    async def story(seen):
        for key in "1234567":
            await seen.press(key)
            assert all(len(line) <= width for line in seen.lines)
            assert seen.lines[3].strip()  # a heading stands over each

    looking_at(fleets.broken(), story, size=(width, 24))


def test_what_is_wrong_is_told_by_letters_and_not_by_colour_alone():
    async def story(seen):
        await seen.press("3")
        marked = {line.split()[1]: line.split()[0] for line in seen.lines if line.startswith("!")}
        assert marked == {"parler-tts-0": "!7", "bge-embed-1": "!11", "llm-8b-1": "!9"}
        assert "dead" in seen.text
        assert "quarantined" in seen.text

    looking_at(fleets.broken(), story)


def test_the_incident_is_marked_on_every_layer_it_concerns():
    async def story(seen):
        for key, name in (
            ("1", "marigold-cpu"),
            ("1", "parler-tts-requests"),
            ("2", "i-0c31"),
            ("3", "parler-tts-0"),
            ("4", "parler-tts"),
            ("5", "parler-tts-requests"),
        ):
            await seen.press(key)
            rows = [line for line in seen.lines if f" {name} " in line and line.startswith("!7")]
            assert rows, (key, name, seen.text)

    looking_at(fleets.broken(), story)
