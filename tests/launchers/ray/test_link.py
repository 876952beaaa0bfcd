"""The link to a bridge that cannot run: nothing hangs, and the reason is told."""

import asyncio
import importlib.util

import pytest

from holdfast.core.types import ConfigError
from holdfast.launchers.ray import launcher as module
from holdfast.launchers.ray.launcher import RAY, RayLauncher
from holdfast.launchers.ray.link import RaySettings
from holdfast.ports import LaunchError, Order, PlaceRequest

HAS_RAY = importlib.util.find_spec("ray") is not None


class Silent:
    def __getattr__(self, name):
        return lambda *_: None


@pytest.mark.skipif(HAS_RAY, reason="this environment has Ray")
def test_without_ray_control_begins_and_each_start_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FIRST_S", 0.01)

    async def main():
        launcher = RayLauncher(RaySettings(), tmp_path)
        try:
            assert await launcher.adopt(Silent()) == []
            async with asyncio.timeout(60):
                while "not installed" not in launcher._link.why_down:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            with pytest.raises(LaunchError, match=r"install holdfast\[ray\]"):
                await launcher.place(RAY, PlaceRequest("m-1", "m"))
            with pytest.raises(LaunchError, match="cannot be used"):
                await launcher.start(Order("m-1", ("x",), on=RAY))
            assert launcher.pid("m-1") is None
            assert await launcher.stop("m-1", 1.0) is None
            launcher.forget("m-1")
        finally:
            await launcher.close(leave_running=True)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"address": ""}, r"ray\.address"),
        ({"namespace": "a/b"}, r"ray\.namespace"),
        ({"lease_s": 1.0}, r"ray\.lease_s"),
    ],
)
def test_settings_that_cannot_work_are_refused(bad, field):
    with pytest.raises(ConfigError, match=field):
        RaySettings(**bad)
