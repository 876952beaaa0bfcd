"""Pods, readings and a stand-in for control, with which discovery is tested."""

from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy.discovery import Discovery
from holdfast.core.view.layers import Host, Placed, Reading

QUICK = {
    "health": {"canary_s": 0.2, "canary_suspect_s": 0.1, "canary_warming_s": 0.05},
    "drain": {"deadline_s": 0.2, "move_s": 0.2, "hear_s": 0.05},
}


def fleet_file(*models, **discover):
    discover = {"source": "kube", **discover}
    found = {"name": "m", "engine": "vllm", "discover": discover}
    listed = {"name": "listed", "engine": "vllm", "endpoints": ["http://127.0.0.1:9"]}
    sources = [{"type": "kubernetes", "name": "kube"}]
    said = {"models": [found, *models, listed], "fleet": QUICK, "sources": sources}
    return FleetFile.model_validate(said)


def placed(name, *, state="running", ip="10.1.0.1", model="m", uid=None, space="default", **more):
    more.setdefault("created_at", 1.0)
    return Placed(f"{space}/{name}", model, state, "n1", address=ip, uid=uid or name, **more)


HOSTS = (Host("n1", zone="z1"),)


def reading(*pods, hosts=HOSTS, source="kube"):
    return Reading(source, "kubernetes", 1.0, hosts=hosts, placed=pods)


def labelled(name, **labels):
    named = {key.replace("_", "-"): value for key, value in labels.items()}
    return placed(name, labels=tuple(sorted(named.items())))


PORTS = (("metrics", 9400), ("http", 8001), ("", 8002))


class Stage:
    """What control is to discovery, without a fleet: ears, and the file it would send on."""

    def __init__(self, store, file, sources=()):
        self.file = file
        self.told = []
        self.notices = []
        self.configs = []
        self.discovery = Discovery(lambda: sources, store, self)
        self.discovery.follow(file)

    def tell(self, *events):
        self.told.append(("tell", *events))

    def note(self, notice):
        self.notices.append(notice)

    def placed(self):
        file = self.file.with_endpoints(self.discovery.endpoints())
        self.configs.append(file)
        self.told.append(("placed", *(one.replica.id for one in file.models[0].deployed())))

    def said(self, what):
        return [notice for notice in self.notices if notice.what == what]
