"""An API server on a loopback port, with handles for everything that goes wrong with real ones.

Each connection has its thread: a watch is then a loop that waits on a condition, and nothing of
the server depends on the event loop of what is tested. What a test may do to it: change objects,
forget history (410, as a status or inside a watch), cut watches, refuse by status, hold answers
back, take metrics away. What it records: every request, so that a test can check which rights the
asker needs.
"""

import contextlib
import json
import socket
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from fakekube.custom import CUSTOM, named
from fakekube.discovery import documents, status_of, table_of
from fakekube.leases import PREFIX as LEASES
from fakekube.leases import Leases
from fakekube.objects import stamp
from fakekube.rbac import Right, forbidden, review, right_for
from fakekube.selectors import BadSelectorError, check, fits
from fakekube.store import API_OF, RESOURCES, UNMARKED, Change, GoneError, Objects, api_of
from fakekube.workloads import WRITABLE, Writes

Json = dict[str, Any]

WAIT_S = 20.0  # for anything a test waits for; then it fails
GONE = "too old resource version"

REVIEWS = ["apis", "authorization.k8s.io", "v1"]

_PLURALS = {kind: plural for plural, (kind, _, _) in RESOURCES.items()}


class ContainerLog(list[tuple[float, str]]):
    """The lines of one run of a container; who follows it is done when that is over."""

    over = False


class FakeKube:
    """``with FakeKube() as kube``; its URL is ``kube.url``."""

    def __init__(self) -> None:
        self.objects = Objects()
        self.requests: deque[tuple[str, str, dict[str, str]]] = deque(maxlen=10_000)
        self.watching: dict[str, int] = dict.fromkeys(RESOURCES, 0)  # open watches, now
        self.watched: dict[str, int] = dict.fromkeys(RESOURCES, 0)  # opened, ever
        self.gone_as = "event"  # or "status"
        self.refusals: dict[str, int] = {}  # by resource, or "*": HTTP status
        self.rights: set[Right] | None = None  # of whoever asks; None: everything
        self.user = "system:serviceaccount:holdfast:holdfast"
        self.forbade: list[Right] = []
        self.held: set[str] = set()  # resources whose requests get no answer for now
        self.token = ""  # where set, who has no such token gets 401
        self.metrics: Json | None = None  # None: no metrics-server
        self.logs: dict[tuple[str, str], ContainerLog] = {}
        self.not_installed: set[str] = set()  # kinds of which the cluster knows nothing
        self.writes = Writes(self.objects)
        self.pages: dict[str, str] = {}  # other texts by path, such as exporters' metrics
        self.leases = Leases()
        self.installed: set[str] = set()  # of CUSTOM; others are 404, as without their definition
        self.cuts = 0
        self.abrupt = False  # cut connections end without a last chunk
        self.stopping = False
        self._changed = self.objects.changed
        self._sockets: set[socket.socket] = set()
        kube = self

        class Handler(Connection):
            owner = kube

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # joined at the end: no thread outlives its test
        self._server.block_on_close = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.put("namespaces", {"metadata": {"name": "default"}, "status": {"phase": "Active"}})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self.stopping = True
            self._changed.notify_all()
        self._server.shutdown()
        self._thread.join()
        with self._changed:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    # --- what a test does ------------------------------------------------------------------------

    def put(self, resource: str, thing: Json) -> Json:
        kind = RESOURCES[resource][0]
        about = thing.get("involvedObject")
        if about is not None and about["kind"] in _PLURALS:  # describe finds events by uid
            plural = _PLURALS[about["kind"]]
            space = about["namespace"] if RESOURCES[plural][1] else ""
            known = self.objects.get(plural, space, about["name"])
            if known is not None:
                thing = {**thing, "involvedObject": {**about, "uid": known["metadata"]["uid"]}}
        return self.objects.put(resource, {"apiVersion": api_of(resource), "kind": kind, **thing})

    def patch(self, resource: str, name: str, change: Json, namespace: str = "default") -> Json:
        space = namespace if RESOURCES[resource][1] else ""
        return self.objects.patch(resource, (space, name), change)

    def delete(self, resource: str, name: str, namespace: str = "default") -> None:
        self.objects.delete(resource, (namespace if RESOURCES[resource][1] else "", name))

    def terminate(self, name: str, namespace: str = "default", grace_s: int = 30) -> None:
        """What ``kubectl delete pod`` does first: it is told to end, and is still there."""
        marks = {"deletionTimestamp": stamp(time.time()), "deletionGracePeriodSeconds": grace_s}
        self.patch("pods", name, {"metadata": marks}, namespace)

    def say(
        self, name: str, text: str, namespace: str = "default", at: float = 1_000_100.5
    ) -> None:
        """A line of a pod's log."""
        with self._changed:
            self.logs.setdefault((namespace, name), ContainerLog()).append((at, text))
            self._changed.notify_all()

    def bookmark(self) -> None:
        self.objects.bookmark()

    def expire(self) -> None:
        """Forget history and end the watches, as a compacted API server does."""
        self.objects.expire()
        self.cut()

    def cut(self, *, abrupt: bool = False) -> None:
        """End every watch."""
        with self._changed:
            self.abrupt = abrupt
            self.cuts += 1
            self._changed.notify_all()

    def refuse(self, resource: str, status: int) -> None:
        """Answer so from now on; 0 takes it back."""
        with self._changed:
            self.refusals[resource] = status

    def hold(self, resource: str) -> None:
        with self._changed:
            self.held.add(resource)

    def release(self, resource: str) -> None:
        with self._changed:
            self.held.discard(resource)
            self._changed.notify_all()

    def await_watch(self, resource: str, opened: int = 1) -> None:
        """Until a watch is open, and so many were opened in all."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: self.watching[resource] > 0 and self.watched[resource] >= opened, WAIT_S
            )
        assert there, f"nobody watches {resource}"

    def asked(self, part: str) -> list[tuple[str, dict[str, str]]]:
        """Paths and queries of requests whose path holds this."""
        with self._changed:
            return [(path, query) for _, path, query in self.requests if part in path]

    def asked_by(self, method: str) -> list[str]:
        """Paths of requests by this method."""
        with self._changed:
            return [path for how, path, _ in self.requests if how == method]

    def await_request(self, part: str, count: int) -> None:
        with self._changed:
            there = self._changed.wait_for(
                lambda: sum(part in path for _, path, _ in self.requests) >= count, WAIT_S
            )
        assert there, f"{part} was asked for fewer than {count} times"


class Connection(BaseHTTPRequestHandler):
    owner: FakeKube
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        with self.owner._changed:
            self.owner._sockets.add(self.connection)

    def finish(self) -> None:
        with self.owner._changed:
            self.owner._sockets.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # a client that leaves is not news
            super().handle()

    def log_message(self, *_: object) -> None:
        """Tests read ``requests``."""

    # --- answers ---------------------------------------------------------------------------------

    def _send(self, code: int, body: Any, kind: str = "application/json") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, code: int, message: str = "") -> None:
        self._send(code, status_of(code, message))

    def _begin_stream(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    # --- requests --------------------------------------------------------------------------------

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        parts = [part for part in split.path.split("/") if part]
        owner = self.owner
        with owner._changed:
            owner.requests.append(("GET", split.path, query))
            owner._changed.notify_all()
        if split.path in owner.pages:
            self._send(200, owner.pages[split.path], "text/plain; version=0.0.4")
            return
        if owner.token and self.headers.get("Authorization") != f"Bearer {owner.token}":
            self._refuse(401, "Unauthorized")
            return
        if self._forbids(split.path, query, "GET"):
            return
        found = documents(split.path, with_metrics=owner.metrics is not None)
        if found is not None:
            self._send(200, found)
        elif parts[:3] == ["apis", "metrics.k8s.io", "v1beta1"]:
            self._usage(parts[-1], query)
        elif parts[:4] == LEASES:
            self._lease(parts[4:], None)
        elif parts[:2] == ["api", "v1"] and len(parts) > 2:
            self._objects(parts[2:], query)
        elif parts[:1] == ["apis"] and owner.installed.intersection(named(parts)):
            self._objects(named(parts), query)
        elif parts[0] == "apis" and "/".join(parts[1:3]) in API_OF.values() and len(parts) > 3:
            self._objects(parts[3:], query)
        else:
            self._send(404, "404 page not found", "text/plain")

    def do_POST(self) -> None:
        self._change()

    def do_PUT(self) -> None:
        self._change()

    def do_PATCH(self) -> None:
        self._change()

    def do_DELETE(self) -> None:
        self._change()

    def _change(self) -> None:
        """Write a lease, a workload or a pod; nothing else is written by whoever asks."""
        split, owner = urlsplit(self.path), self.owner
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(data) if data else {}
        parts = [part for part in split.path.split("/") if part]
        with owner._changed:
            owner.requests.append((self.command, split.path, query))
            owner._changed.notify_all()
        if parts[:3] == REVIEWS:
            self._send(201, review(body, owner.rights))
            return
        if self._forbids(split.path, query, self.command):
            return
        if parts[:4] == LEASES:
            self._lease(parts[4:], body)
            return
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        resource = rest[2] if rest[:1] == ["namespaces"] and len(rest) > 2 else ""
        if resource not in WRITABLE or resource in owner.not_installed:
            self._send(404, "404 page not found", "text/plain")
        elif not self._barred(resource):
            kind = self.headers.get("Content-Type") or ""
            told = (resource, rest[1], rest[3:], body, query, kind)
            self._send(*owner.writes.answer(self.command, *told))

    def _lease(self, parts: list[str], body: Json | None) -> None:
        refusal = self.owner.refusals.get("leases", 0)
        if refusal:
            self._refuse(refusal)
            return
        self._send(*self.owner.leases.answer(self.command, parts, body))

    def _forbids(self, path: str, query: dict[str, str], method: str) -> bool:
        """Whether the account has no right to this, which it is then told."""
        owner, asked = self.owner, right_for(path, query, method)
        if owner.rights is None or asked is None:
            return False
        if any(one.covers(asked) for one in owner.rights):
            return False
        with owner._changed:
            owner.forbade.append(asked)
        self._refuse(403, forbidden(asked, owner.user))
        return True

    def _objects(self, parts: list[str], query: dict[str, str]) -> None:
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        resource = parts[0]
        if resource not in RESOURCES or resource in self.owner.not_installed:
            self._send(404, "404 page not found", "text/plain")
            return
        if self._barred("pods/log" if parts[2:] == ["log"] else resource):
            return
        if len(parts) == 1:
            try:
                check(resource, query)
            except BadSelectorError as error:
                self._refuse(400, str(error))
                return
            if query.get("watch") in {"true", "1"}:
                self._watch(resource, namespace, query)
            else:
                self._list(resource, namespace, query)
            return
        thing = self.owner.objects.get(resource, namespace, parts[1])
        if thing is None:
            self._refuse(404, f'{resource} "{parts[1]}" not found')
        elif parts[2:] == ["log"]:
            names = [one.get("name") for one in thing["spec"].get("containers") or ()]
            if len(names) > 1 and query.get("container") not in names:
                self._refuse(400, f"a container name must be specified, choose one of: {names}")
            else:
                self._log(namespace, parts[1], query)
        elif "as=Table" in self.headers.get("Accept", ""):
            self._send(200, table_of(resource, [thing], thing["metadata"]["resourceVersion"]))
        else:
            self._send(200, thing)

    def _barred(self, resource: str) -> bool:
        owner = self.owner
        with owner._changed:
            owner._changed.wait_for(
                lambda: owner.stopping or not ({resource, "*"} & owner.held), WAIT_S
            )
            code = owner.refusals.get(resource) or owner.refusals.get("*") or 0
        if owner.stopping:
            self.close_connection = True
            return True
        if code:
            self._refuse(code, f'{resource} is forbidden: User "system:x" cannot list it')
        return bool(code)

    def _list(self, resource: str, namespace: str, query: dict[str, str]) -> None:
        try:
            version, items, follows = self.owner.objects.page(resource, namespace, query)
        except GoneError:
            self._refuse(410, "The provided continue parameter or resource version is too old")
            return
        if "as=Table" in self.headers.get("Accept", ""):
            self._send(200, table_of(resource, items, str(version), follows))
            return
        for item in items if resource not in CUSTOM else ():
            item.pop("kind", None)  # an API server leaves them out inside a list of its own kinds
            item.pop("apiVersion", None)
        meta = {"resourceVersion": str(version), **({"continue": follows} if follows else {})}
        kind = f"{RESOURCES[resource][0]}List"
        told = {"kind": kind, "apiVersion": api_of(resource), "metadata": meta, "items": items}
        self._send(200, told)

    def _usage(self, what: str, query: dict[str, str]) -> None:
        metrics = self.owner.metrics
        if self._barred("metrics"):
            return
        if metrics is None or what not in metrics:
            self._send(404, "404 page not found", "text/plain")
            return
        kind = "NodeMetricsList" if what == "nodes" else "PodMetricsList"
        version, items = "metrics.k8s.io/v1beta1", metrics[what]
        if "labelSelector" in query:
            chosen = self.owner.objects.chosen(what, "", query)
            keys = [(one["metadata"].get("namespace"), one["metadata"]["name"]) for one in chosen]
            items = [
                one
                for one in items
                if (one["metadata"].get("namespace"), one["metadata"]["name"]) in keys
            ]
        self._send(200, {"kind": kind, "apiVersion": version, "items": items})

    def _log(self, namespace: str, name: str, query: dict[str, str]) -> None:
        owner = self.owner
        follow = query.get("follow") in {"true", "1"}
        stamped = query.get("timestamps") in {"true", "1"}

        def text(line: tuple[float, str]) -> bytes:
            head = f"{stamp(line[0])[:-1]}{f'{line[0] % 1:.9f}'[1:]}Z " if stamped else ""
            return f"{head}{line[1]}\n".encode()

        with owner._changed:
            log = owner.logs.setdefault((namespace, name), ContainerLog())
            lines = list(log)
        sent, tail = len(lines), query.get("tailLines")
        shown = lines[max(0, len(lines) - int(tail)) :] if tail is not None else lines
        if "sinceTime" in query:
            shown = [line for line in shown if stamp(line[0]) >= query["sinceTime"]]
        limit = int(query.get("limitBytes") or 1 << 30)
        body = b"".join(text(line) for line in shown)[:limit]
        if not follow:
            self._send(200, body.decode(), "text/plain")
            return
        self._begin_stream("text/plain")
        if body:
            self._chunk(body)
        ends = time.monotonic() + WAIT_S
        while not owner.stopping and time.monotonic() < ends:
            with owner._changed:
                fresh = log[sent:]
                over = log.over or (namespace, name) not in owner.objects.things["pods"]
                if not fresh and not over:
                    owner._changed.wait(0.2)
            for line in fresh:
                self._chunk(text(line))
            sent += len(fresh)
            if over and not fresh:
                break
        self.wfile.write(b"0\r\n\r\n")

    # --- watches ---------------------------------------------------------------------------------

    def _watch(self, resource: str, namespace: str, query: dict[str, str]) -> None:
        owner, objects = self.owner, self.owner.objects
        asked = query.get("resourceVersion", "")
        first: list[Change] = []
        with owner._changed:
            cuts = owner.cuts
            version = int(asked or 0)
            if version:
                try:
                    objects.since(resource, version)
                except GoneError:
                    if owner.gone_as == "status":
                        self._refuse(410, f"{GONE}: {version}")
                        return
                    first = [Change(version, resource, "ERROR", ("", ""), status_of(410, GONE))]
            else:
                version = objects.version
                for thing in objects.chosen(resource, namespace, query):
                    key = (thing["metadata"].get("namespace", ""), thing["metadata"]["name"])
                    first.append(Change(version, resource, "ADDED", key, thing))
            owner.watching[resource] += 1
            owner.watched[resource] += 1
            owner._changed.notify_all()
        try:
            self._begin_stream("application/json")
            for change in first:
                self._tell(change)
            if not first or first[0].what != "ERROR":
                self._follow(resource, namespace, query, version, cuts)
            if not owner.abrupt:
                self.wfile.write(b"0\r\n\r\n")
        finally:
            with owner._changed:
                owner.watching[resource] -= 1
                owner._changed.notify_all()
        self.close_connection = True

    def _follow(
        self,
        resource: str,
        namespace: str,
        query: dict[str, str],
        version: int,
        cuts: int,
    ) -> None:
        owner = self.owner
        ends = time.monotonic() + float(query.get("timeoutSeconds") or WAIT_S * 6)
        marks = query.get("allowWatchBookmarks") in {"true", "1"} and resource not in UNMARKED
        while not owner.stopping and owner.cuts == cuts and time.monotonic() < ends:
            with owner._changed:
                try:
                    news = owner.objects.since(resource, version)
                except GoneError:
                    return
                if not news:
                    owner._changed.wait(min(0.5, max(0.0, ends - time.monotonic())))
                    continue
            for change in news:
                version = change.version
                if change.what == "BOOKMARK":
                    if marks:
                        self._tell(change)
                    continue
                if namespace and change.key[0] != namespace:
                    continue
                # What a selector no longer chooses is deleted for who asked so, and the reverse.
                chosen = change.what != "DELETED" and fits(change.thing, query)
                was = change.before is not None and fits(change.before, query)
                if chosen or was:
                    what = ("MODIFIED" if was else "ADDED") if chosen else "DELETED"
                    self._tell(Change(version, resource, what, change.key, change.thing))

    def _tell(self, change: Change) -> None:
        thing = change.thing
        if change.what == "BOOKMARK":
            kind = RESOURCES[change.resource][0]
            thing = {"kind": kind, "apiVersion": api_of(change.resource), **thing}
        self._chunk(json.dumps({"type": change.what, "object": thing}).encode() + b"\n")


__all__ = ["Connection", "FakeKube"]
