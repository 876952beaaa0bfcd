"""The states of a batch: every way ends, and no event leads out of an end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.batch.lifecycle import (
    ENDED,
    TRANSITIONS,
    BatchEvent,
    BatchState,
    BatchTransitionError,
    follow,
    may_take,
)


@given(st.lists(st.sampled_from(BatchEvent), max_size=30))
def test_an_ended_batch_stays_ended_and_a_cancelled_one_never_completes(events):
    state = BatchState.VALIDATING
    seen = [state]
    for event in events:
        if may_take(state, event):
            state = follow(state, event)
            seen.append(state)
        else:
            with pytest.raises(BatchTransitionError):
                follow(state, event)
    for before, after in pairwise(seen):
        assert before not in ENDED
        assert after is not BatchState.COMPLETED or before is BatchState.FINALIZING
    if BatchState.CANCELLING in seen:
        assert BatchState.COMPLETED not in seen


def test_every_state_that_has_not_ended_reaches_an_end():
    for state in set(BatchState) - ENDED:
        reached, frontier = {state}, [state]
        while frontier:
            here = frontier.pop()
            for (before, _), after in TRANSITIONS.items():
                if before is here and after not in reached:
                    reached.add(after)
                    frontier.append(after)
        assert reached & ENDED, state


def test_a_refused_event_names_the_state_it_met():
    with pytest.raises(BatchTransitionError, match="completed cannot take cancel"):
        follow(BatchState.COMPLETED, BatchEvent.CANCEL)
