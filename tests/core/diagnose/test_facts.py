from dataclasses import fields, is_dataclass
from typing import get_args

import pytest

from holdfast.core.diagnose.facts import FACT_NAMES, Fact


def test_the_list_of_kinds_is_the_union() -> None:
    assert set(get_args(Fact)) == set(FACT_NAMES)
    assert len(FACT_NAMES) == len(set(FACT_NAMES.values()))


@pytest.mark.parametrize("kind", FACT_NAMES)
def test_a_fact_is_a_frozen_value_that_holds_no_text_of_users(kind) -> None:
    assert is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    names = {field.name for field in fields(kind)}
    assert not names & {"prompt", "answer", "body", "text", "messages", "content", "key"}


def test_serialised_names_of_facts_are_a_promise() -> None:
    """Exported incidents and stores of earlier versions hold these names."""
    assert list(FACT_NAMES.values()) == [
        "Declared",
        "Gone",
        "ChainDeclared",
        "RolloutSeen",
        "HostSeen",
        "HostConditionSeen",
        "VersionsSeen",
        "FilesystemSeen",
        "QueueSeen",
        "GpuFault",
        "GpuSeen",
        "ProcessEnded",
        "ProcessFrozen",
        "PhaseSeen",
        "LineSeen",
        "FellSilent",
        "MemorySeen",
        "StateChanged",
        "CanaryAnswered",
        "AttemptsSeen",
        "LoadSeen",
        "InferencesSeen",
        "OutputSeen",
        "FinishesSeen",
        "Compared",
        "RequestDied",
        "CanariesDoubted",
        "ControlLate",
        "ServingProcessFrozen",
        "SourceFailing",
        "ReplicasWanted",
        "OwnShortage",
        "Looked",
    ]
