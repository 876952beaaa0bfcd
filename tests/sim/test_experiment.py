from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.types import Replica
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.workload import Workload


def test_only_the_replicas_must_be_given() -> None:
    setup = Experiment((Replica("r0", "m"),))
    assert setup.workloads == setup.engines == ()
    assert setup.engine == EngineParameters()
    assert (setup.flow, setup.fleet) == (FlowConfig(), FleetConfig())
    assert len(setup.faults) == 0
    assert (setup.warm, setup.canaries, setup.poll_s) == (True, True, 1.0)


def test_every_model_has_a_lane_whether_it_has_a_replica_or_not() -> None:
    own = LaneConfig(routing="round_robin")
    flow = FlowConfig(lanes={"m": own})
    setup = Experiment(
        (Replica("r0", "n"),), workloads=(("m", Workload()), ("z", Workload())), flow=flow
    )
    assert setup.whole_flow().lanes == {"n": flow.lane, "m": own, "z": flow.lane}
    assert setup.flow is flow


def test_two_setups_share_nothing_that_could_change() -> None:
    one, two = Experiment(()), Experiment(())
    assert one.flow.lanes is not two.flow.lanes
    assert one.faults is not two.faults
