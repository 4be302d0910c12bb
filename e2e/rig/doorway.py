"""A door from the machine's loopback into a network namespace: bytes in, bytes out.

Run as `python -m rig.doorway --netns FILE --target HOST:PORT`; prints the loopback port that it listens on. The
listener belongs to the machine's namespace, the connections that it opens to the cluster's: nothing is routed and
nothing outside can reach in. When either side ends a connection, so does the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import os
import signal
import socket
from pathlib import Path

CLONE_NEWNET = 0x40000000
CHUNK = 64 * 1024  # bytes


def enter_netns(file: Path) -> None:
    """Let sockets that this process opens from now on belong to the namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with file.open("rb") as handle:
        if libc.setns(handle.fileno(), CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter {file}: {os.strerror(number)}")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    try:
        there_reader, there_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    copies = [asyncio.ensure_future(_copy(reader, there_writer)), asyncio.ensure_future(_copy(there_reader, writer))]
    with contextlib.suppress(asyncio.CancelledError):  # the door closes: the streams' own callback would complain
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    for copy in copies:
        copy.cancel()
    for end in (writer, there_writer):
        end.close()
        with contextlib.suppress(OSError):
            await end.wait_closed()


async def serve(listener: socket.socket, host: str, port: int) -> None:
    """Pass connections until ended."""
    server = await asyncio.start_server(lambda r, w: _pass(r, w, host, port), sock=listener)
    async with server:
        await server.serve_forever()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--netns", type=Path, required=True)
    parser.add_argument("--target", required=True, help="HOST:PORT inside the namespace")
    arguments = parser.parse_args()
    host, _, port = arguments.target.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    enter_netns(arguments.netns)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(listener.getsockname()[1], flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(listener, host, int(port)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
