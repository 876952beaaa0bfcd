"""``holdfast top`` as somebody types on it, against a real port."""

from dataclasses import replace

import fleets
from admin_port import looking_at
from textual import events

from holdfast.ui.terminal.top.colours import DARK, LIGHT, Tone, is_dark
from holdfast.ui.terminal.top.fleet_tables import REPLICAS


def rows(seen):
    """The names of the rows that are shown."""
    words = [line.split() for line in seen.lines[4:-2] if line.strip()]
    return [found[1] if found[0].startswith("!") else found[0] for found in words]


def test_each_number_is_a_view_and_escape_leads_home():
    async def story(seen):
        for key, title in zip("234567", ("HOSTS", "REPLICAS", "MODELS"), strict=False):
            await seen.press(key)
            assert title in seen.lines[3]
        await seen.press("5")
        assert "BACKLOG" in seen.lines[3]
        await seen.press("escape")
        assert seen.lines[2].strip().startswith("overview")

    looking_at(fleets.calm(), story)


def test_a_filter_works_while_it_is_typed_and_escape_takes_it_back():
    async def story(seen):
        await seen.press("3", "slash", *"bge")
        assert rows(seen) == ["bge-embed-0", "bge-embed-1"]
        assert "/ bge" in seen.lines[2]
        await seen.press("enter", "slash", "escape")
        assert len(rows(seen)) == 8
        await seen.press("slash", *"nothing", "enter")
        assert "none of 8 is shown" in seen.text
        await seen.press("escape")
        assert len(rows(seen)) == 8

    looking_at(fleets.calm(), story)


def test_a_filter_finds_words_of_columns_that_do_not_fit():
    async def story(seen):
        await seen.press("3", "slash")
        await seen.type("i-0c31 parler")
        assert rows(seen) == ["parler-tts-0"]
        await seen.press("slash")
        await seen.press("ctrl+u")
        await seen.type("outofmemory")
        assert rows(seen) == ["parler-tts-0"]

    looking_at(fleets.broken(), story)


def test_only_what_is_wrong_is_shown_on_request():
    async def story(seen):
        await seen.press("3", "exclamation_mark")
        assert rows(seen) == ["parler-tts-0", "bge-embed-1", "llm-8b-1"]
        assert "! only what is wrong" in seen.lines[2]
        await seen.press("exclamation_mark")
        assert len(rows(seen)) == 8

    looking_at(fleets.broken(), story)


def test_a_calm_fleet_has_nothing_wrong_to_show():
    async def story(seen):
        await seen.press("exclamation_mark")
        assert "none of 4 is shown" in seen.text

    looking_at(fleets.calm(), story)


def test_enter_leads_down_the_layers_and_escape_back_the_same_way():
    async def story(seen):
        await seen.press("down", "enter")  # the second group
        assert seen.lines[2].startswith(" overview › marigold-gpu-small")
        await seen.press("enter")  # its first host
        assert seen.lines[2].startswith(" overview › marigold-gpu-small › i-0b21")
        await seen.press("enter")  # its replica
        assert "› i-0b21 › llm-8b-0" in seen.lines[2]
        await seen.press("backspace", "escape", "escape")
        assert seen.lines[2].strip() == "overview"
        assert seen.app.listing.key == "groups:aws/marigold-gpu-small"

    looking_at(fleets.calm(), story)


def test_an_incident_is_opened_from_its_row_and_from_those_it_concerns():
    async def story(seen):
        await seen.press("enter")
        await seen.until("HOW WE KNOW")
        assert seen.lines[2].startswith(" overview › inc-000007")
        await seen.press("5", "i")
        await seen.until("HOW WE KNOW")
        await seen.press("3", "end", "i")
        assert "no incident concerns this row" in seen.text

    looking_at(fleets.broken(), story)


def test_an_incident_that_control_does_not_know_says_so():
    async def story(seen):
        await seen.press("colon")
        await seen.type("incident 99")
        await seen.until("inc-000099: no such incident")

    looking_at(fleets.broken(), story)


def test_a_queue_and_an_unmet_demand_lead_to_their_model():
    async def story(seen):
        await seen.press("5", "enter")
        assert "MODEL parler-tts" in seen.text
        assert "QUEUE" in seen.text
        await seen.press("1", *["down"] * 7, "enter")
        assert seen.lines[2].startswith(" overview › parler-tts")
        assert "no container instance met" in seen.text

    looking_at(fleets.broken(), story, size=(80, 40))


def test_help_tells_every_key_and_command():
    async def story(seen):
        await seen.press("question_mark")
        for words in ("KEYS", "COMMANDS", "SIGNS", "drain REPLICA", "!7", "Ctrl-C"):
            assert words in seen.text
        await seen.press("question_mark", "escape")
        assert seen.lines[2].strip() == "overview"

    looking_at(fleets.calm(), story, size=(100, 50))


def test_the_palette_opens_views_and_completes_names():
    async def story(seen):
        for name, words in (("disks", "FILESYSTEMS"), ("groups", "GROUPS"), ("help", "KEYS")):
            await seen.press("colon")
            await seen.type(name)
            assert words in seen.lines[3]
        await seen.press("colon", *"log", "space", "l")
        await seen.pilot.pause(0.1)
        await seen.press("tab", "enter")
        await seen.until("log llm-70b-0")

    looking_at(fleets.calm(), story)


def test_letters_that_come_faster_than_the_screen_are_typed_and_not_obeyed():
    async def story(seen):
        for key in ("colon", "l", "o", "g"):  # without waiting for any of them
            letter = ":" if key == "colon" else key
            seen.app.post_message(events.Key(key, letter))
        await seen.pilot.pause(0.1)
        assert seen.lines[-1].startswith(" :log")
        assert seen.lines[2].strip() == "overview"
        await seen.press("slash")
        assert seen.lines[-1].startswith(" :log/")
        await seen.press("escape")
        assert "1–7 views" in seen.lines[-1]

    looking_at(fleets.calm(), story)


def test_what_cannot_be_done_is_said_with_what_can():
    async def story(seen):
        for typed, told in (
            ("fly", "no command 'fly'; there are overview"),
            ("log nosuch", "no replica 'nosuch'; there are llm-70b-0"),
            ("log parler", "no replica 'parler'; there are parler-tts-0, parler-tts-1"),
            ("story", "story needs the id of a request"),
            ("incident", "incident needs the id"),
            ("restart", "restart needs a replica"),
            ("", "nothing typed"),
        ):
            await seen.press("colon")
            await seen.type(typed)
            assert told in seen.lines[-2], seen.text
        await seen.press("l")
        assert "no replica is chosen" in seen.text

    looking_at(fleets.calm(), story, size=(120, 24))


def test_a_replica_is_restarted_only_after_a_yes():
    async def story(seen):
        await seen.press("3", "colon")
        await seen.type("restart")  # the replica of the row
        assert "restart llm-70b-0? y or n:" in seen.lines[-1]
        await seen.press("n", "enter")
        assert "nothing was done" in seen.text
        await seen.press("colon")
        await seen.type("drain llm-8b-1")
        await seen.press("escape")
        assert not [line for line in seen.admin.asked if line.startswith("POST")]
        await seen.press("colon")
        await seen.type("drain llm-8b-1")
        await seen.press("y", "enter")
        await seen.until("taken on: /replicas/llm-8b-1/drain")
        assert "POST /replicas/llm-8b-1/drain" in seen.admin.asked

    looking_at(fleets.calm(), story)


def test_a_log_grows_while_it_is_read():
    async def story(seen):
        seen.admin.log = b"".join(b"line %d\n" % n for n in range(60))
        await seen.press("3", "l")
        await seen.until("line 59")
        assert "log llm-70b-0" in seen.lines[2]
        seen.admin.log = b"\x1b[31mand more\x07\n"
        seen.admin.change(seen.admin.snapshot)
        await seen.until("·[31mand more·")
        await seen.press("home")
        assert "line 0" in seen.lines[3]
        seen.admin.log = b"later\n"
        seen.admin.change(seen.admin.snapshot)
        await seen.pilot.pause(0.1)
        assert "line 0" in seen.lines[3]  # who reads the beginning is left there
        await seen.press("end")
        await seen.until("later")

    looking_at(fleets.calm(), story)


def test_a_log_that_nobody_has_says_why():
    async def story(seen):
        await seen.press("colon")
        await seen.type("log parler-tts-0")
        await seen.until("parler-tts-0: nothing is at /replicas/parler-tts-0/logs")

    looking_at(fleets.calm(), story)


def test_a_story_that_nobody_kept_says_why():
    async def story(seen):
        await seen.press("colon")
        await seen.type("story abc")
        await seen.until("no gateway knows this request")
        assert "x-request-id" in seen.text
        await seen.press("r")
        await seen.until("asked anew")

    looking_at(fleets.calm(), story)


def test_rows_are_sorted_by_one_column_after_the_other():
    async def story(seen):
        await seen.press("3", "s")
        assert "↑" in seen.lines[3]
        assert rows(seen)[0] == "bge-embed-0"
        await seen.press("S")
        assert rows(seen)[0] == "parler-tts-1"
        await seen.press("s", "s", "s")
        assert "memory↓" in seen.lines[3].replace(" ", "")
        assert rows(seen)[0].startswith("llm-70b")
        await seen.press("end", *"s" * (len(REPLICAS.columns) - 4))  # the rest of the columns
        assert "what is wrong first" in seen.text

    looking_at(fleets.calm(), story)


def test_the_cursor_stays_on_its_row_when_others_come_before_it():
    async def story(seen):
        await seen.press("3", "down", "down")
        assert seen.app.listing.line.row.id == "llm-8b-0"
        seen.app.take(fleets.broken())
        await seen.pilot.pause()
        assert seen.app.listing.line.row.id == "llm-8b-0"

    looking_at(fleets.calm(), story)


def test_a_thing_that_goes_away_is_shown_as_it_was():
    async def story(seen):
        await seen.press("3", "enter")
        seen.app.take(replace(fleets.calm(), replicas=()))
        await seen.pilot.pause()
        assert "it is in no source any more" in seen.text
        assert "REPLICA llm-70b-0" in seen.text
        await seen.press("escape")
        assert "no replica yet" in seen.text

    looking_at(fleets.calm(), story)


def test_many_rows_scroll_under_their_heading():
    async def story(seen):
        await seen.press("3", "pagedown", "pagedown")
        assert "REPLICAS" in seen.lines[3]
        assert "of 501" in seen.lines[2]
        await seen.press("end")
        assert "483–501 of 501" in seen.lines[2]
        last = seen.app.listing.line.row
        assert last.id in seen.lines[-3]
        await seen.press("home")
        assert "1–19 of 501" in seen.lines[2]
        await seen.press("k", "up")
        assert "1–19 of 501" in seen.lines[2]

    looking_at(fleets.big(), story)


def test_the_mouse_moves_and_opens():
    async def story(seen):
        await seen.press("3")
        await seen.pilot.click("Listing", offset=(6, 4))
        assert seen.app.listing.line.row.id == "llm-8b-1"
        await seen.pilot.click("Listing", offset=(6, 4))
        await seen.pilot.pause()
        assert "› llm-8b-1" in seen.lines[2]
        await seen.press("2")
        listing = seen.app.listing
        at = {"x": 1, "y": 1, "delta_x": 0, "delta_y": 0, "button": 0}
        held = {"shift": False, "meta": False, "ctrl": False}
        listing.post_message(events.MouseScrollDown(listing, **at, **held))
        listing.post_message(events.MouseScrollUp(listing, **at, **held))
        await seen.pilot.pause()
        assert listing.top == 0

    looking_at(fleets.calm(), story)


def test_another_size_gives_other_columns():
    async def story(seen):
        assert "in use" not in seen.text
        await seen.pilot.resize_terminal(160, 50)
        await seen.pilot.pause()
        assert "in use" in seen.text

    looking_at(fleets.broken(), story)


def test_both_themes_are_a_key_apart():
    async def story(seen):
        before = seen.text
        assert seen.app.colours is LIGHT
        await seen.press("t")
        assert seen.app.colours is DARK
        assert seen.text == before  # letters do not depend on colours

    looking_at(fleets.broken(), story, dark=False)


def test_q_and_quit_leave():
    async def leave_by_key(seen):
        await seen.press("q")
        assert not seen.app.is_running

    async def leave_by_word(seen):
        await seen.press("colon")
        await seen.type("quit")
        assert not seen.app.is_running

    looking_at(fleets.calm(), leave_by_key)
    looking_at(fleets.calm(), leave_by_word)


def test_the_theme_follows_the_terminal_unless_told():
    assert is_dark("auto", {})
    assert is_dark("auto", {"COLORFGBG": "15;0"})
    assert not is_dark("auto", {"COLORFGBG": "0;15"})
    assert not is_dark("auto", {"COLORFGBG": "0;default;7"})
    assert not is_dark("light", {"COLORFGBG": "15;0"})
    assert is_dark("dark", {"COLORFGBG": "0;15"})


def _luminance(colour):
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_tone_can_be_read_on_every_ground():
    for colours in (DARK, LIGHT):
        for ground in ("page", "band", "chosen"):
            for tone in Tone:
                lights = sorted(
                    (_luminance(colours.values[tone]), _luminance(colours.values[ground]))
                )
                assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5, (tone, ground, colours.dark)
