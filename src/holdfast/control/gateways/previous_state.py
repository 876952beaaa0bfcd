"""Reads the state that the previous control process left: config, view, learned answers.

Each is used as far as it can be read. What cannot be read is logged and left out: a control that
refuses to start because of old state is worse than one that begins with less.
"""

from pathlib import Path

import structlog

from holdfast.config.fleet_file import EndpointSection, FleetFile
from holdfast.control.fleet.audience import Earlier
from holdfast.control.gateways.state_file import read_state
from holdfast.core.health.answers.answer_book import AnswerBook
from holdfast.frames import ConfigFrame, frame_to_view
from holdfast.ports import Store

_log = structlog.get_logger("holdfast.control")


def read_previous(path: Path) -> tuple[ConfigFrame | None, Earlier | None]:
    """The previous control's config and view from the state file; (None, None): unusable.

    The view alone is None where none was saved. Logs what cannot be used.
    """
    config, view = read_state(path)
    if config is None:
        return None, None
    try:
        deployed = FleetFile.from_json(config.config).replicas()
        return config, Earlier(frame_to_view(view), tuple(deployed)) if view else None
    except ValueError as error:  # FrameError and pydantic's are such
        _log.warning("earlier state not used", reason=type(error).__name__)
        return None, None


def without_placed_endpoints(config: ConfigFrame) -> bytes:
    """The frame's fleet file as JSON, without endpoints of launched and discovered replicas."""
    file = FleetFile.from_json(config.config)
    nowhere: dict[str, list[EndpointSection]] = {
        model.name: [] for model in file.models if model.placed_by_control
    }
    return file.with_endpoints(nowhere).to_json()


def stored_answers(store: Store) -> AnswerBook:
    """The learned canary answers from the store; an empty book where none can be read."""
    kept = store.answers()
    try:
        return AnswerBook.restore(kept) if kept else AnswerBook()
    except ValueError as error:
        _log.error("kept answers not understood; they are learned anew", reason=str(error))
        return AnswerBook()


__all__ = ["read_previous", "stored_answers", "without_placed_endpoints"]
