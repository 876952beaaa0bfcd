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
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-b",NAME="%(name)s"} 60
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",NAME="%(name)s"} 301.5
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0",UUID="GPU-a",NAME="%(name)s"} 2
DCGM_FI_DEV_ROW_REMAP_PENDING{gpu="0",UUID="GPU-a",NAME="%(name)s"} 1
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="0",UUID="GPU-a",NAME="%(name)s"} 64
"""


def page(label, name="node-1"):
    used = {"pod": 'pod="m-1",namespace="default"', "none": 'pod="",namespace=""'}
    driver = 'DCGM_FI_DRIVER_VERSION="570.86"'
    return PAGE.replace("NAME", label) % {"name": name, "driver": driver, **used}


@pytest.mark.parametrize("label", ["Hostname", "hostname"])
def test_both_spellings_of_the_host_are_understood(label):
    hosts, pods = read_page(page(label))
    found = hosts["node-1"]
    first, second = found.devices["GPU-a"], found.devices["GPU-b"]
    assert (first.memory_used_bytes, first.memory_total_bytes) == (21_000 * MIB, 24_000 * MIB)
    assert (second.memory_used_bytes, second.memory_total_bytes) == (0, 23_000 * MIB)
    assert (first.utilisation, second.utilisation) == (0.9, 0.1)
    assert (first.xid, first.xid_fatal, second.xid) == (79, True, None)
    assert (first.power_w, first.ecc_uncorrected, first.remap_pending) == (301.5, 2, True)
    assert (first.throttle, second.throttle) == (("thermal",), None)
    assert (second.temperature_c, second.label, found.driver) == (60, "GPU 1", "570.86")
    use = pods["default/m-1"].use()
    assert (use.count, use.held_bytes, use.memory_share) == (1, 21_000 * MIB, 0.875)


def test_memory_of_a_gpu_that_pods_share_is_nobodys_own():
    text = "".join(
        f'DCGM_FI_DEV_FB_{kind}{{gpu="0",UUID="GPU-a",hostname="n",'
        f'pod="{pod}",namespace="d"}} {v}\n'
        for pod in ("one", "two")
        for kind, v in (("USED", 500), ("FREE", 1_500))
    )
    hosts, pods = read_page(text)
    device = hosts["n"].devices["GPU-a"]
    assert (device.memory_used_bytes, device.memory_total_bytes) == (500 * MIB, 2_000 * MIB)
    use = pods["d/one"].use()
    assert (use.memory_used_bytes, use.held_bytes, use.memory_share) == (500 * MIB, None, None)


def test_slices_of_one_gpu_are_devices_of_their_own():
    text = "".join(
        f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-a",GPU_I_ID="{n}",hostname="n"'
        f',pod="p{n}",namespace="d"}} {100 * n}\n'
        f'DCGM_FI_DEV_FB_FREE{{gpu="0",UUID="GPU-a",GPU_I_ID="{n}",hostname="n"}} 100\n'
        for n in (1, 2)
    )
    hosts, pods = read_page(text)
    assert set(hosts["n"].devices) == {"GPU-a/1", "GPU-a/2"}
    assert pods["d/p2"].use().held_bytes == 200 * MIB


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
