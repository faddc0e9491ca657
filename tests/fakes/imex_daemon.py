"""Stands in for ``nvidia-imex`` and ``nvidia-imex-ctl``: ready once it has met every node that its configuration names.

    python -m tests.fakes.imex_daemon serve CONFIGURATION    # answers peers on SERVER_PORT, questions on IMEX_CMD_PORT
    python -m tests.fakes.imex_daemon query ADDRESS PORT     # prints READY or INITIALIZING

It shares no memory and knows nothing of NVIDIA's protocol. Only the names of settings are the real ones, and what ready
means: every node is up, and each can reach the others.
"""

import asyncio
import socket
import sys
from pathlib import Path

HELLO = b"imex\n"


def settings(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)


async def reaches(address: str, port: int) -> bool:
    """Whether the daemon of that node answers."""
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                return await reader.readline() == HELLO
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


async def serve(file: Path) -> None:
    given = settings(file)
    port, nodes = int(given["SERVER_PORT"]), Path(given["IMEX_NODE_CONFIG_FILE"])

    async def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HELLO)
        writer.close()

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met = await asyncio.gather(*(reaches(address, port) for address in nodes.read_text().split()))
        writer.write(b"READY\n" if met and all(met) else b"INITIALIZING\n")
        writer.close()

    bound = given["IMEX_CMD_BIND_INTERFACE_IP"]
    peers = await asyncio.start_server(meet, bound, port)
    questions = await asyncio.start_server(tell, bound, int(given["IMEX_CMD_PORT"]))
    async with peers, questions:
        await asyncio.Event().wait()


def query(address: str, port: int) -> str:
    """What a daemon says of itself; UNAVAILABLE where there is none."""
    try:
        with socket.create_connection((address, port), timeout=10) as connection:
            return connection.makefile().readline().strip()
    except OSError:
        return "UNAVAILABLE"


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve(Path(sys.argv[2])))
    else:
        print(query(sys.argv[2], int(sys.argv[3])))
