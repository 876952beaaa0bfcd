"""Encodes frames to bytes, and decodes them piece by piece as a socket delivers them."""

from typing import Final

import msgspec

from holdfast.frames.kinds import (
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    TAGS,
    Frame,
    FrameError,
    tag_of,
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Frame]] = msgspec.msgpack.Decoder(Frame)
_ANYTHING: Final = msgspec.msgpack.Decoder()
# What the codec lets out besides its own errors: bad UTF-8, for one, is a plain ValueError.
_CODEC_ERRORS: Final = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
)


def encode(frame: Frame) -> bytes:
    """Encode one frame to bytes, length included."""
    try:
        payload = _ENCODER.encode(frame)
    except _CODEC_ERRORS as error:
        raise FrameError(f"a frame {tag_of(frame)!r} cannot be encoded: {error}") from error
    if len(payload) > FRAME_BYTES_MAX:
        raise FrameError(
            f"a frame {tag_of(frame)!r} has {len(payload)} bytes, the most is {FRAME_BYTES_MAX}"
        )
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameReader:
    """Decodes frames from the pieces a socket delivers; one reader for each connection.

    Holds at most one incomplete frame. After a FrameError it reads nothing more.
    """

    __slots__ = ("_broken", "_buffer", "bytes_max", "skipped")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max  # of one frame; less for a peer that is not authenticated
        self.skipped = 0  # frames of a newer peer whose tag is not known here
        self._buffer = bytearray()
        self._broken: FrameError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """Add bytes; returns the frames that are complete now, in order."""
        self.add(data)
        frames = []
        while (frame := self.take()) is not None:
            frames.append(frame)
        return frames

    def add(self, data: bytes) -> None:
        """Add bytes, for ``take``."""
        if self._broken is not None:
            raise self._broken
        self._buffer += data

    def take(self) -> Frame | None:
        """Remove and return the next frame that is complete; None until more bytes come."""
        if self._broken is not None:
            raise self._broken
        try:
            return self._next()
        except FrameError as error:
            self._broken = error
            self._buffer.clear()
            raise

    def _next(self) -> Frame | None:
        buffer = self._buffer
        while len(buffer) >= HEADER_BYTES:
            size = int.from_bytes(buffer[:HEADER_BYTES], "big")
            if size > self.bytes_max:
                raise FrameError(f"a frame of {size} bytes comes, the most is {self.bytes_max}")
            end = HEADER_BYTES + size
            if len(buffer) < end:
                break
            payload = bytes(buffer[HEADER_BYTES:end])
            del buffer[:end]
            frame = _decode(payload)
            if frame is not None:
                return frame
            self.skipped += 1
        return None


def _decode(payload: bytes) -> Frame | None:
    """One frame, or None for a tag that is not known here."""
    try:
        return _DECODER.decode(payload)
    except _CODEC_ERRORS as error:
        tag = _tag_of(payload)
        if tag is not None and tag not in TAGS:
            return None
        raise FrameError(f"a frame {tag or 'without a tag'} cannot be read: {error}") from error


def _tag_of(payload: bytes) -> str | None:
    """The tag of a frame that did not decode; None where there is none. Off the usual path."""
    try:
        content = _ANYTHING.decode(payload)
    except _CODEC_ERRORS:
        return None
    if isinstance(content, list) and content and isinstance(content[0], str):
        return content[0]
    return None


__all__ = ["FrameReader", "encode"]
