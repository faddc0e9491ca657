"""A process with a gRPC server and nothing else, a floor for what the agent takes; it imports no more than that needs.

``python -m benchmarks.bare_server SOCKET`` serves until it is told to end.
"""

import asyncio
import sys
from pathlib import Path

from node_agent.kubelet.server import serving


async def serve(socket: Path) -> None:
    async with serving(socket, lambda server: None):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
