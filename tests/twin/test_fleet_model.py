from dataclasses import replace

import pytest

from holdfast.config.files import load_text
from holdfast.config.fleet_file import FleetFile
from holdfast.core.plan.faults import Fault, FaultKind
from holdfast.core.types import ConfigError
from holdfast.sim.workload import Workload
from holdfast.twin.fleet_model import fleet_twin
from holdfast.twin.twin_file import TwinModel, new_twin_file
from twin_data import FLEET, LAW

LISTED = """\
models:
  - name: llama
    engine: vllm
    endpoints:
      - {url: "http://10.0.0.1:8000", id: first, zone: zone-x, slots: 4}
      - {url: "http://10.0.0.2:8000", slots: 4}
"""
TRAFFIC = {"llama": Workload(rate=2.0)}


def fleet(text=FLEET, **how):
    twin = new_twin_file({"llama": TwinModel(engine=LAW, per_host=2, cold_start_s=9.0)}, "test")
    return fleet_twin(load_text("fleet.yaml", text, FleetFile), twin, **how)


def test_launched_replicas_have_the_names_and_zones_that_control_gives_them():
    members = fleet().members()
    assert [(one.id, one.zone, one.slots) for one in members] == [
        ("llama-1", "zone-a", 8),
        ("llama-2", "zone-b", 8),
    ]


def test_listed_replicas_are_those_of_the_file():
    listed = fleet(LISTED).members()
    assert [(one.id, one.zone) for one in listed] == [("first", "zone-x"), ("llama-2", "zone-a")]
    more = fleet(LISTED, replicas={"llama": 3}).members()
    assert [one.id for one in more] == ["first", "llama-2", "llama-more-1"]


def test_an_experiment_has_the_files_policies_and_the_twins_engines():
    made = fleet(traffic=TRAFFIC).experiment(60.0)
    assert dict(made.engines)["llama"] == replace(LAW, batch_max=8)
    assert dict(made.hosts) == {"llama-1": "llama/host-0", "llama-2": "llama/host-0"}
    assert made.slo.first_token_s == 2.0
    assert (made.loading.start_s, made.loading.size_gb) == (9.0, 0.0)
    assert made.flow.lanes["llama"].slo_first_token_s == 2.0


def test_cost_is_that_of_the_prices_or_unknown():
    assert fleet().cost_per_hour() == 5.0
    assert fleet(LISTED).cost_per_hour() is None


def test_what_is_missing_is_asked_for_and_not_invented():
    file = load_text("fleet.yaml", FLEET, FleetFile)
    with pytest.raises(ConfigError, match=r"traffic: is not known.*give --rate"):
        fleet_twin(file, None).experiment(60.0)
    with pytest.raises(ConfigError, match=r"models.llama: has no fitted engine.*holdfast bench"):
        fleet_twin(file, None, traffic=TRAFFIC).experiment(60.0)
    with pytest.raises(ConfigError, match="twin: knows only mistral; calibrate one of llama"):
        fleet_twin(file, new_twin_file({"mistral": TwinModel(engine=LAW)}, "test"))


def test_a_fleet_of_nobody_is_refused():
    empty = FLEET.replace("replicas: 2", "replicas: 0")
    with pytest.raises(ConfigError, match="models: have no replica at all"):
        fleet(empty, traffic=TRAFFIC).experiment(60.0)


def test_a_fault_needs_somebody_to_strike():
    made = fleet(traffic=TRAFFIC)
    with pytest.raises(ConfigError, match=r"fault.target: is 'nobody'.*llama-1, llama-2"):
        made.experiment(60.0, faults=[Fault(FaultKind.HANG, "nobody", 0)])
    with pytest.raises(ConfigError, match=r"is 'llama-1'.*zone-a, zone-b"):
        made.experiment(60.0, faults=[Fault(FaultKind.ZONE_LOSS, "llama-1", 0)])
