import xml.etree.ElementTree as ET

from holdfast.chaos.gameday import FleetSample, GameDayRecord, GameDayRequest, InjectedFault
from holdfast.chaos.report import markdown, picture
from holdfast.config.chaos import PlanFile

PLAN = PlanFile.model_validate(
    {"name": "a <bad> day", "steps": [{"fault": "hang", "replica": "m-1", "for": 10.0}]}
)


def record(**more):
    told = GameDayRecord(PLAN, began_at=1_000.0, **more)
    states = ["ready", "ready", "quarantined", "loading", "ready"]
    told.looks = [
        FleetSample(
            2.0 * i, {"m-1": (state, 0.5 if state == "ready" else 0.0), "m-2": ("ready", 1.0)}
        )
        for i, state in enumerate(states)
    ]
    told.asked = [
        GameDayRequest(1.0, 0.2, ""),
        GameDayRequest(2.0, 0.3, "status 502"),
        *[GameDayRequest(3.0, 0.1, "")] * 8,
    ]
    told.struck = [InjectedFault(1.0, 11.0, "hang", "m-1")]
    told.incidents = [
        {
            "id": "inc-000001",
            "class": "runtime",
            "cause": "hung",
            "about": {"replica": "m-1"},
            "replicas": ["m-1"],
            "opened_at": 1_003.5,
            "action": "taken | out",
        }
    ]
    return told


def test_the_picture_is_valid_and_shows_lanes_faults_requests_and_incidents():
    drawn = picture(record())
    root = ET.fromstring(drawn)
    texts = "".join(root.itertext())
    for words in ("a <bad> day", "m-1", "m-2", "hang", "hung", "status 502", "requests"):
        assert words in texts
    assert drawn.count('class="harm" cx') == 1


def test_the_page_says_whether_the_fleet_held_and_when_it_was_noticed():
    page = markdown(record(), "timeline.svg")
    assert "**did not hold**: 10.00% of 10 requests harmed, bound 1.00%" in page
    assert "inc-000001 hung after 2.5 s" in page
    assert "taken / out" in page
    assert "![timeline](timeline.svg)" in page


def test_an_incident_of_an_earlier_day_that_came_back_is_told_by_when_it_did():
    told = record()
    told.incidents[0] |= {"opened_at": 600.0, "begun_at": 1_007.0}
    assert "inc-000001 hung after 6.0 s" in markdown(told, "x.svg")


def test_a_fault_that_nobody_noticed_says_so():
    told = record()
    told.incidents = []
    told.asked = []
    page = markdown(told, "x.svg")
    assert "| none |" in page
    assert "**held**" in page


def test_a_fault_that_could_not_be_is_told_and_does_not_hold():
    told = record()
    told.asked = []
    told.struck = [InjectedFault(1.0, 1.0, "hang", "m-9", "no replica is called 'm-9'")]
    assert not told.held
    assert "no replica is called" in markdown(told, "x.svg")


def test_a_day_that_saw_nothing_is_drawn_all_the_same():
    ET.fromstring(picture(GameDayRecord(PLAN)))
