import asyncio

import pytest

from holdfast.sources.kubernetes import KubernetesConfig
from holdfast.sources.kubernetes.api import KubernetesApi
from holdfast.sources.kubernetes.usage import LOOK_AGAIN_S, GpuExporters, MemoryUsage, read_page

MIB = 1 << 20
PAGE = """\
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",NAME="%(name)s",%(driver)s,%(pod)s} 20000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-b",NAME="%(name)s",%(driver)s,%(none)s} 0
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a",NAME="%(name)s"} 3000
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-b",NAME="%(name)s"} 23000
DCGM_FI_DEV_FB_RESERVED{gpu="0",UUID="GPU-a",NAME="%(name)s"} 1000
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",NAME="%(name)s"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",NAME="%(name)s"} 10
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-a",NAME="%(name)s",err_msg="odd \\" text}"} 79
DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-b",NAME="%(name)s"} 0
DCGM_FI_DEV_GPU_TEMP{gpu="1",NAME="%(name)s"} 60
"""


def page(label, name="node-1"):
    used = {"pod": 'pod="m-1",namespace="default"', "none": 'pod="",namespace=""'}
    driver = 'DCGM_FI_DRIVER_VERSION="570.86"'
    return PAGE.replace("NAME", label) % {"name": name, "driver": driver, **used}


@pytest.mark.parametrize("label", ["Hostname", "hostname"])
def test_both_spellings_of_the_host_are_understood(label):
    hosts, pods = read_page(page(label))
    found = hosts["node-1"]
    assert (found.used_bytes, found.total_bytes) == (21_000 * MIB, 47_000 * MIB)
    assert found.busy == [0.9, 0.1]
    assert (found.faults, found.driver) == (["XID 79 on GPU 0"], "570.86")
    assert pods["default/m-1"].used_bytes == 20_000 * MIB


@pytest.mark.parametrize(
    "text",
    ["", "<html>", "DCGM_FI_DEV_FB_USED 5", 'DCGM_FI_DEV_FB_USED{gpu="0"} 5', "\x00" * 100],
)
def test_other_pages_say_nothing(text):
    assert read_page(text) == ({}, {})


def test_values_that_are_no_amounts_are_left():
    text = "".join(f'DCGM_FI_DEV_FB_USED{{hostname="n"}} {v}\n' for v in ("NaN", "-1", "x", "+Inf"))
    assert read_page(text)[0] == {}


def test_an_exporter_that_fails_keeps_what_it_said_and_says_why(kube):
    kube.pages["/a"] = page("Hostname")
    urls = (f"{kube.url}/a", f"{kube.url}/b")

    async def main():
        config = KubernetesConfig(api_url=kube.url, dcgm_urls=urls)
        api = KubernetesApi(config)
        exporters = GpuExporters(api, config)
        await exporters.turn()
        (part,) = exporters.parts()
        assert part.at is None
        assert part.error.startswith(f"1 of 2 exporters failed: {kube.url}/b: 404")
        assert set(exporters.hosts()) == {"node-1"}
        kube.pages["/b"] = page("hostname", "node-2")
        await exporters.turn()
        (part,) = exporters.parts()
        assert (part.error, part.calls) == ("", 2)
        assert set(exporters.hosts()) == {"node-1", "node-2"}
        del kube.pages["/b"]
        await exporters.turn()
        assert set(exporters.hosts()) == {"node-1", "node-2"}
        assert exporters.parts()[0].at is not None
        await api.close()

    asyncio.run(main())


def test_metrics_server_tells_what_is_used(kube):
    used = {"cpu": "1", "memory": "3Gi"}
    kube.metrics = {
        "nodes": [{"metadata": {"name": "node-1"}, "usage": used}],
        "pods": [
            {
                "metadata": {"name": "m-1", "namespace": "default"},
                "containers": [{"name": "a", "usage": used}, {"name": "b", "usage": used}],
            }
        ],
    }

    async def main():
        config = KubernetesConfig(api_url=kube.url)
        api = KubernetesApi(config)
        usage = MemoryUsage(api, config)
        assert await usage.turn() == config.usage_s
        assert usage.hosts == {"node-1": 3 << 30}
        assert usage.pods == {"default/m-1": 6 << 30}
        assert usage.parts()[0].error == ""
        kube.metrics = {"nodes": {"odd": 1}, "pods": []}
        await usage.turn()
        assert usage.parts()[0].error == "its answer makes no sense"
        assert usage.hosts == {"node-1": 3 << 30}
        kube.refuse("metrics", 500)
        await usage.turn()
        assert usage.parts()[0].error.startswith("500 ")
        await api.close()

    asyncio.run(main())


@pytest.mark.parametrize("status", [0, 403, 503])
def test_a_missing_metrics_server_is_said_once_and_is_no_failure(kube, status):
    kube.refuse("metrics", status)

    async def main():
        config = KubernetesConfig(api_url=kube.url)
        api = KubernetesApi(config)
        usage = MemoryUsage(api, config)
        assert await usage.turn() == LOOK_AGAIN_S
        assert usage.parts() == ()
        assert usage.absent.startswith("metrics-server cannot be asked (")
        # Whoever may not list nodes may well list pods of a namespace.
        assert len(kube.asked("metrics.k8s.io")) == (2 if status == 403 else 1)
        await api.close()

    asyncio.run(main())
