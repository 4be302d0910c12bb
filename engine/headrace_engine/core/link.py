"""The core's end of the ZeroMQ link to the API process."""

from __future__ import annotations

import logging

import msgspec
import zmq

from headrace_engine.core.messages import FromCore, ToCore, encoder, to_core_decoder

log = logging.getLogger(__name__)


class Link:
    """PULL in, PUSH out; both connect, the API process binds."""

    def __init__(self, inbound: str, outbound: str):
        """`inbound`, `outbound`: ZeroMQ addresses that the API process has bound, as the core sees them."""
        self._context = zmq.Context()
        self._in = self._context.socket(zmq.PULL)
        self._out = self._context.socket(zmq.PUSH)
        for socket in (self._in, self._out):
            socket.set_hwm(0)
            socket.setsockopt(zmq.LINGER, 1000)
        self._in.connect(inbound)
        self._out.connect(outbound)
        self._decoder = to_core_decoder()
        self._encoder = encoder()

    def receive(self, timeout_s: float) -> list[ToCore]:
        """All messages that are there; waits up to `timeout_s` for the first. A malformed one is logged and skipped."""
        messages: list[ToCore] = []
        if timeout_s > 0 and not self._in.poll(max(1, int(timeout_s * 1000))):
            return messages
        while True:
            try:
                frame = self._in.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append(self._decoder.decode(frame))
            except msgspec.DecodeError as error:
                log.error("message refused", extra={"error": str(error)})

    def send(self, message: FromCore) -> None:
        """Queue a message to the API process."""
        self._out.send(self._encoder.encode(message))

    def close(self) -> None:
        """Send what is queued (for up to a second) and close."""
        self._in.close()
        self._out.close()
        self._context.term()
