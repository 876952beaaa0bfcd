"""Runs a small fleet of stand-ins, makes parts of it fail, and keeps what is told and stored.

    python tests/recorded/record.py FOLDER      about two minutes; FOLDER is filled anew

Only public entry points are used: the command line, the admin port, the fleet file. So the script
runs on any commit, whatever its modules are called. ``test_recorded.py`` starts the same fleet with
the functions below, on a copy of the state folder that was recorded.
"""

import argparse
import contextlib
import gzip
import importlib
import importlib.metadata
import json
import os
import pkgutil
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import click
import yaml
from click.testing import CliRunner

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
PATIENCE_S: Final = 60.0  # of a busy machine: every replica is a new interpreter
LISTED: Final = (
    "small-a",
    "small-b",
    "small-c",
)  # started here; the fleet file has their addresses
LAUNCHED: Final = ("chat-1", "chat-2", "chat-3")  # started by ``holdfast serve``
STAND_IN: Final = ("--ttft-ms", "20", "--tpot-ms", "4", "--tokens", "12")
STORES: Final = ("control.sqlite", "history.sqlite")
_SIDE: Final = re.compile(r"side port (\d+)")

Json = Any


# --- asking ---------------------------------------------------------------------------------------


def fetch(url: str, body: Json = None, method: str | None = None) -> bytes:
    """The body of an answer; ``urllib.error.HTTPError`` for 400 and above."""
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else {"content-type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        told: bytes = answer.read()
    return told


def command(*words: str) -> str:
    """What a command of the command line prints."""
    done = CliRunner().invoke(command_line(), words)
    if done.exit_code:
        raise RuntimeError(f"{' '.join(words)}: {done.output}")
    return done.stdout


def until(true: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """Wait for something and return it."""
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError):  # nobody listens yet; HTTP errors are such, too
            if found := true():
                return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for taken in sockets:
            taken.bind(("127.0.0.1", 0))
        return [taken.getsockname()[1] for taken in sockets]


# --- the fleet ------------------------------------------------------------------------------------


class Fleet:
    """One ``holdfast serve`` and its stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.config = folder / "fleet.yaml"
        self.gateway = self.admin = ""
        self.engines: dict[str, str] = {}  # side ports of the listed ones
        self._processes: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        """Start it."""
        ports = iter(free_ports(2 + 2 * len(LISTED)))
        told = yaml.safe_load((HERE / "fleet.yaml").read_text(encoding="utf-8"))
        told["gateway"]["listen"] = f"127.0.0.1:{next(ports)}"
        told["admin"]["listen"] = f"127.0.0.1:{next(ports)}"
        self.gateway = f"http://{told['gateway']['listen']}"
        self.admin = f"http://{told['admin']['listen']}"
        for endpoint in told["models"][1]["endpoints"]:
            port, side = str(next(ports)), str(next(ports))
            endpoint["url"] = f"http://127.0.0.1:{port}"
            self.engines[endpoint["id"]] = f"http://127.0.0.1:{side}"
            where = ("--port", port, "--side-port", side, "--model", "small", "--seed", "1")
            self._start("stand-in", *where, *STAND_IN)
        self.config.write_text(yaml.safe_dump(told, sort_keys=False), encoding="utf-8")
        where = ("-c", str(self.config), "--state-dir", str(self.state))
        self._start("serve", *where)

    def _start(self, *words: str) -> None:
        # The fleet file says 'holdfast', without a path; this one is meant.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        run = self.folder / "run"  # where 'serve' makes the folder of its sockets
        run.mkdir(exist_ok=True)
        around = {**os.environ, "PATH": path, "TMPDIR": str(run)}
        line = [sys.executable, "-m", "holdfast", *words]
        with (self.folder / f"{words[0]}-{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(line, stdout=log, stderr=log, env=around)
        self._processes.append(process)

    def close(self) -> None:
        """End all of it; ``serve`` first, which ends what it launched."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def said(self) -> str:
        """The end of what ``serve`` wrote, for whoever reads a failure."""
        logs = sorted(self.folder.glob("serve-*.log"))
        return "\n".join(log.read_text(errors="replace")[-4_000:] for log in logs)

    def get(self, path: str) -> Json:
        """An answer of the admin port."""
        return json.loads(fetch(self.admin + path))

    def ask(self, *words: str) -> Json:
        """What a command prints as JSON."""
        return json.loads(command(*words, "--admin", self.admin))

    def rows(self) -> dict[str, dict[str, Any]]:
        """What status tells of each replica."""
        return {row["id"]: row for row in self.get("/status")["replicas"]}

    def all_ready(self) -> bool:
        """Whether everybody serves."""
        states = {name: row["state"] for name, row in self.rows().items()}
        return set(states) == {*LISTED, *LAUNCHED} and set(states.values()) == {"ready"}

    def chat(self, model: str, number: int) -> bytes:
        """One request of a client, every other one as a stream."""
        message = {"role": "user", "content": f"question {number} of many"}
        body = {"model": model, "messages": [message], "stream": bool(number % 2)}
        return fetch(f"{self.gateway}/v1/chat/completions", {**body, "max_tokens": 12})

    def incidents(self) -> list[dict[str, Any]]:
        """All incidents."""
        found: list[dict[str, Any]] = self.get("/incidents?limit=100")["incidents"]
        return found

    # --- what is done to it ---

    def strike(self, replica: str, **fault: Any) -> None:
        """Make a stand-in ill, through its side port."""
        fetch(f"{self._side(replica)}/fault", fault)

    def heal(self, replica: str) -> None:
        """Make it well again."""
        fetch(f"{self._side(replica)}/fault", method="DELETE")

    def kill(self, replica: str) -> None:
        """End the process of a launched replica."""
        os.kill(int(self.rows()[replica]["pid"]), signal.SIGKILL)

    def _side(self, replica: str) -> str:
        if replica in self.engines:
            return self.engines[replica]
        log = fetch(f"{self.admin}/replicas/{replica}/logs?lines=1000").decode()
        return f"http://127.0.0.1:{_SIDE.findall(log)[-1]}"


class Traffic:
    """A few clients that ask all the while."""

    def __init__(self, fleet: Fleet, pause_s: float = 0.1) -> None:
        self._fleet, self._pause_s = fleet, pause_s
        self._over = threading.Event()
        self._clients = [
            threading.Thread(target=self._ask, args=(model,), daemon=True)
            for model in ("chat", "small", "small", "auto")
        ]

    def __enter__(self) -> Self:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._over.set()
        for client in self._clients:
            client.join(60)

    def _ask(self, model: str) -> None:
        number = 0
        while not self._over.wait(self._pause_s):
            number += 1
            with contextlib.suppress(OSError):  # some are meant to fail
                self._fleet.chat(model, number)


@contextlib.contextmanager
def running(folder: Path, begun: Callable[[Fleet], bool] = Fleet.all_ready) -> Iterator[Fleet]:
    """A fleet that has begun, by default all of it; ended on the way out whatever happens."""
    fleet = Fleet(folder)
    try:
        fleet.open()
        until(lambda: begun(fleet), "the fleet has begun")
    except TimeoutError as error:
        fleet.close()
        raise RuntimeError(f"{error}; serve said:\n{fleet.said()}") from error
    try:
        yield fleet
    finally:
        fleet.close()


# --- what is the same for every fleet -------------------------------------------------------------


def command_line() -> click.Command:
    """The command line, by the name under which it is installed."""
    (found,) = importlib.metadata.entry_points(group="console_scripts", name="holdfast")
    loaded: click.Command = found.load()
    return loaded


def commands() -> dict[str, list[str]]:
    """Every command of the command line with its options."""
    return dict(_commands(command_line(), "holdfast"))


def _commands(here: click.Command, name: str) -> Iterator[tuple[str, list[str]]]:
    yield name, sorted(option for one in here.params for option in one.opts)
    if isinstance(here, click.Group):
        context = click.Context(here)
        for word in here.list_commands(context):
            child = here.get_command(context, word)
            if child is not None and not child.hidden:
                yield from _commands(child, f"{name} {word}")


def codes() -> dict[str, list[str]]:
    """Names with a fixed meaning, from the pages that are generated from the code."""
    return {
        "causes": sorted(p.stem for p in (ROOT / "docs/causes").glob("*.md") if p.stem != "index"),
        "kinds": _column("reference/failures.md", "kinds", "kind"),
        "errors": _column("reference/failures.md", "errors", "code"),
        "client headers": _column("reference/http.md", "headers", "header"),
        "client paths": _column("reference/http.md", "paths", "path"),
    }


def _rows(page: str, block: str) -> list[dict[str, str]]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.search(rf"<!-- generated: {block} -->(.*?)<!-- end -->", text, re.DOTALL)
    assert found is not None, f"{page} has no block {block}"
    lines = [line.strip("|").split("|") for line in found[1].split("\n") if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(cells[0], row, strict=False)) for row in cells[2:]]


def _column(page: str, block: str, name: str) -> list[str]:
    return sorted({row[name].replace("`", "") for row in _rows(page, block)})


def documented_metrics() -> dict[str, str]:
    """Every metric by name: its type and its labels."""
    rows = _rows("reference/metrics.md", "metrics")
    return {row["metric"].strip("`"): f"{row['type']}: {row['labels']}" for row in rows}


_SAMPLE: Final = re.compile(r"(\w+)(?:\{(.*)\})? \S+")
_LABEL: Final = re.compile(r'(\w+)="(?:[^"\\]|\\.)*"')


def served_metrics(page: str) -> dict[str, str]:
    """The metrics of a page of ``/metrics`` by name: type and labels."""
    found: dict[str, str] = {}
    kind = family = ""
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split()
        elif (sample := _SAMPLE.fullmatch(line)) is not None:
            labels = [name for name in _LABEL.findall(sample[2] or "") if name != "le"]
            found.setdefault(family, f"{kind}: {', '.join(f'`{name}`' for name in labels)}")
    return found


def fleet_keys() -> dict[str, Json]:
    """Every key of a fleet file by its place, with its type, bounds and default."""
    schema = _fleet_file().model_json_schema()
    found: dict[str, Json] = {}
    _keys(schema, schema.get("$defs", {}), "", found)
    return dict(sorted(found.items()))


def _fleet_file() -> Any:
    """The class that reads fleet files, wherever below ``holdfast.config`` it is."""
    package = importlib.import_module("holdfast.config")
    for module in pkgutil.walk_packages(package.__path__, "holdfast.config."):
        found = getattr(importlib.import_module(module.name), "FleetFile", None)
        if found is not None:
            return found
    raise LookupError("holdfast.config has no class FleetFile")


def _keys(schema: Json, named: Json, place: str, found: dict[str, Json]) -> None:
    """Names of classes are left out: they are nobody's business but ours."""
    while "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**named[schema["$ref"].rpartition("/")[2]], **rest}
    inner = ("properties", "items", "anyOf", "oneOf", "additionalProperties", "allOf")
    texts = ("title", "description", "discriminator", "$defs")
    own = {key: value for key, value in schema.items() if key not in (*inner, *texts)}
    kept = found.setdefault(place, [])
    if own not in kept:
        kept.append(own)
    for name, child in schema.get("properties", {}).items():
        _keys(child, named, f"{place}.{name}" if place else name, found)
    if "items" in schema:
        _keys(schema["items"], named, f"{place}[]", found)
    if isinstance(schema.get("additionalProperties"), dict):
        _keys(schema["additionalProperties"], named, f"{place}.*", found)
    for key in ("anyOf", "oneOf", "allOf"):
        for child in schema.get(key, ()):
            _keys(child, named, place, found)


# --- what a fleet tells ---------------------------------------------------------------------------


def answers(fleet: Fleet, incident: str) -> dict[str, Json]:
    """What commands and paths tell as JSON; ``incident`` is the one that is told whole."""
    return {
        "status": fleet.ask("status", "--json"),
        "incidents": fleet.ask("incidents", "--all", "--json"),
        "top": fleet.ask("top", "--json"),
        "cost": fleet.ask("cost", "--json"),
        "explain": fleet.ask("explain", incident, "--json"),
        "view": fleet.get("/view"),
        "events": fleet.get("/events?limit=1000"),
        "gpus": fleet.get("/gpus"),
        "canaries": fleet.get("/replicas/small-c/canaries"),
        "series": fleet.get("/history/series?prefix=replica/small-c/"),
    }


def shape(value: Json) -> dict[str, list[str]]:
    """Every member of a JSON value by its place, with the types it has; items of a list as one."""
    found: dict[str, set[str]] = {}
    _shape(value, "", found)
    return {place: sorted(types) for place, types in sorted(found.items())}


_TYPES: Final = {dict: "object", list: "list", str: "text", bool: "truth", type(None): "null"}
_NAMES: Final = {*LISTED, *LAUNCHED, "chat", "small", "auto"}  # members named by the fleet file
_TABLES: Final = ("numbers", "seconds_by_use")  # their members are there when there is such a thing


def _shape(value: Json, place: str, found: dict[str, set[str]]) -> None:
    found.setdefault(place, set()).add(_TYPES.get(type(value), "number"))
    if isinstance(value, dict):
        table = place.endswith(_TABLES)
        for name, child in value.items():
            _shape(child, f"{place}.{'*' if table or name in _NAMES else name}", found)
    elif isinstance(value, list):
        for child in value:
            _shape(child, f"{place}[]", found)


# --- recording ------------------------------------------------------------------------------------


def record(target: Path, folder: Path) -> None:
    """Run the fleet in ``folder`` and keep in ``target`` what is told of it."""
    write(target / "commands.json", commands())
    write(target / "codes.json", codes())
    write(target / "fleet-keys.json.gz", fleet_keys())
    with running(folder) as fleet:
        with Traffic(fleet):
            _misfortunes(fleet)
            time.sleep(11)  # one more sample of the history
        listed = fleet.incidents()
        told = answers(fleet, listed[0]["id"])
        for name, answer in told.items():
            write(target / "json" / f"{name}.json", answer)
        for incident in listed:
            export = target / "exports" / f"{incident['id']}.jsonl.gz"
            lines = command("incidents", "--admin", fleet.admin, "export", incident["id"])
            write(export, lines)
            write(
                target / "incidents" / f"{incident['id']}.json",
                fleet.get(f"/incidents/{incident['id']}"),
            )
        page = fetch(f"{fleet.admin}/metrics").decode()
        seen = {"documented": documented_metrics(), "served": served_metrics(page)}
        write(target / "metrics.json", seen)
        write(target / "openapi.json.gz", fleet.get("/openapi.json"))
        (frames,) = folder.glob("run/holdfast-*/state.frames")
        write(target / "state.frames.gz", frames.read_bytes())
        _keep_state(fleet.state, target / "state")
    state = target / "state"
    with tempfile.TemporaryDirectory() as unpacked:
        open_state(state, Path(unpacked))
        write(target / "history.csv.gz", exported_history(Path(unpacked)))
        write(target / "store.json.gz", stored(Path(unpacked) / "control.sqlite"))


def _misfortunes(fleet: Fleet) -> None:
    """A crash, a slow one, a hang and wrong answers; some of it is over at the end."""

    def incident(cause: str, replica: str) -> Callable[[], Any]:
        def found() -> Any:
            fitting = [one for one in fleet.incidents() if replica in one["replicas"]]
            return next((one["id"] for one in fitting if one["cause"] == cause), None)

        return found

    which = ("--admin", fleet.admin, "--state-dir", str(fleet.state))
    command("scale", "chat", "3", *which)
    time.sleep(12)
    fleet.strike("small-b", kind="slow", factor=30)
    fleet.kill("chat-2")
    until(incident("crashed", "chat-2"), "a crash is told")
    until(incident("slow", "small-b"), "a slow one is told")
    fleet.heal("small-b")
    until(lambda: fleet.rows()["small-b"]["state"] == "ready", "it is well again")
    fleet.strike("chat-1", kind="wrong_output")
    wrong = until(incident("wrong_output", "chat-1"), "wrong answers are told")
    fleet.strike("small-a", kind="hang")
    until(incident("hung", "small-a"), "a hang is told")
    fleet.heal("chat-1")
    command("incidents", *which, "close", wrong)
    over = ("crashed", "slow", "wrong_output")
    until(
        lambda: {one["cause"] for one in fleet.incidents() if one["stage"] == "closed"} >= {*over},
        "three of them are over",
    )
    command("drain", "chat-3", *which)


def _keep_state(state: Path, target: Path) -> None:
    """The state folder as a killed ``serve`` would leave it, each store as one whole file."""
    for name in STORES:
        with (
            contextlib.closing(sqlite3.connect(state / name)) as store,
            tempfile.TemporaryDirectory() as folder,
        ):
            copy = Path(folder) / name
            store.execute("VACUUM INTO ?", (str(copy),))
            write(target / f"{name}.gz", copy.read_bytes())
    for path in sorted((state / "replicas").glob("*/*")):
        data = path.read_bytes()
        if path.name == "keeper.json":  # of no boot that ever was: no process is taken for theirs
            data = json.dumps({**json.loads(data), "boot": str(uuid.UUID(int=0))}).encode()
        write(target / path.relative_to(state), data)


def open_state(kept: Path, target: Path) -> None:
    """Unpack a state folder that was kept."""
    for path in kept.rglob("*"):
        if path.is_file():
            place = target / path.relative_to(kept)
            place.parent.mkdir(parents=True, exist_ok=True)
            plain = place.with_suffix("") if place.suffix == ".gz" else place
            plain.write_bytes(unpacked(path))


def exported_history(state: Path) -> str:
    """All figures of a history, as finely as they were kept."""
    with contextlib.closing(sqlite3.connect(state / "control.sqlite")) as store:
        (first,), (last,) = (
            store.execute(f"SELECT {which}(at) FROM events").fetchone() for which in ("min", "max")
        )
    span = ("--since", f"{first - 60:.0f}", "--until", f"{last + 600:.0f}")
    return command("history", "--state", str(state), "--step", "10s", *span)


def stored(path: Path) -> dict[str, Json]:
    """What the tables of the store hold: they are a format that other versions read."""
    with contextlib.closing(sqlite3.connect(path)) as store:
        tables = dict(store.execute("SELECT name, sql FROM sqlite_master WHERE sql <> ''"))
        state = {
            f"{kind}/{name}": json.loads(value)
            for kind, name, value in store.execute("SELECT kind, name, value FROM state")
        }
        (version,) = store.execute("PRAGMA user_version").fetchone()
    return {"version": version, "tables": tables, "state": state}


def write(path: Path, content: Json) -> None:
    """Keep one file; JSON with sorted members, packed where the name ends so."""
    if isinstance(content, str):
        content = content.encode()
    if not isinstance(content, bytes):
        content = json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n"
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def unpacked(path: Path) -> bytes:
    """The bytes that ``write`` was given."""
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def read(path: Path) -> Json:
    """What ``write`` kept: the value of JSON, the text of anything else."""
    content = unpacked(path)
    return json.loads(content) if ".json" in path.suffixes else content.decode()


def main() -> None:
    """Fill a folder anew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, help="where the files are kept")
    parser.add_argument("--run-in", type=Path, help="an empty folder; its path is in the files")
    given = parser.parse_args()
    for name in ("exports", "incidents", "json", "state"):
        shutil.rmtree(given.target / name, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        record(given.target, given.run_in or Path(folder))


if __name__ == "__main__":
    main()
