"""The same story opens the same class and cause, whoever tells it."""

import asyncio
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.append(HERE)

import telling  # noqa: E402 found by the path above

from holdfast.core.failure import Cause, Class  # noqa: E402

# What each story is, by whomever it is told; None: nothing is wrong, and nothing opens.
MEANS = {
    telling.SERVED: (Class.RUNTIME, Cause.OUT_OF_MEMORY),
    telling.LOADING: (Class.LOADING, Cause.LOAD_OUT_OF_MEMORY),
    # Kubernetes evicts; elsewhere the kernel kills, and a platform says so, or only 137.
    telling.EVICTED: (Class.RUNTIME, Cause.OUT_OF_MEMORY),
    telling.UNPLACED: (Class.ROUTING, Cause.NOT_PLACED),
    telling.UNFETCHED: (Class.ROUTING, Cause.NOT_PLACED),
    telling.LEFT: None,
}
# What a platform cannot tell, and why.
UNTOLD = {
    ("agent", telling.UNPLACED): "an agent sees its host; who is wanted is known elsewhere",
    ("agent", telling.UNFETCHED): "the same: no process of it ever was on the host",
    ("agent", telling.LEFT): "whoever is no child of its has no exit code: gone is all it sees",
    ("process", telling.UNPLACED): "there is one host; a start that fails is a load that failed",
    (
        "process",
        telling.UNFETCHED,
    ): "a process has no image; its program is there or the load fails",
}


def test_each_platform_tells_each_story_or_it_is_said_why_not():
    for platform in telling.PLATFORMS:
        untold = {story for name, story in UNTOLD if name == platform.name}
        assert set(platform.tells) | untold == set(telling.STORIES)
        assert not set(platform.tells) & untold
    assert set(MEANS) == set(telling.STORIES)


@pytest.fixture
def nobodys_keys(monkeypatch):
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere/file")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize("platform", telling.PLATFORMS, ids=lambda one: one.name)
def test_the_same_story_is_the_same_incident(platform, tmp_path, world, nobodys_keys):
    expected = {story: MEANS[story] for story in platform.tells}

    def opened(control):
        found = telling.told(control)
        return {story: found.get(story) for story in platform.tells}

    async def main(stage):
        async with telling.telling(stage, tmp_path, world) as control:
            stage.before()
            assert await telling.until(control, stage.seen)
            assert not telling.told(control)  # nothing is wrong yet
            stage.after()
            wanted = {story: {told} if told else None for story, told in expected.items()}

            def settled(one):
                if isinstance(stage, telling.Agents):
                    stage.look()
                return opened(one) == wanted

            await telling.until(control, settled)
            assert opened(control) == wanted
            assert None not in telling.told(control)
            assert set(telling.told(control)) <= set(platform.tells)

    with platform(tmp_path) as stage:
        asyncio.run(main(stage))
