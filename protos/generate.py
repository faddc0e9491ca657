"""Generate the stubs of ``node_agent/wire/`` from the ``.proto`` files that lie here; ``make protos`` runs it.

``python protos/generate.py [ROOT]`` replaces the stubs under ROOT, the root of the clone unless it is given. Besides
the messages (``_pb2``) and services (``_pb2_grpc``) of grpcio-tools each module gets the types that mypy reads: those
of the services by mypy-protobuf, for grpc.aio alone.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

PROTOS = Path(__file__).resolve().parent
PACKAGE = "node_agent/wire"
SERVICE_TYPES = Path(sysconfig.get_path("scripts"), "protoc-gen-mypy_grpc")


def generate(root: Path) -> None:
    """Replace the stubs in ``root/node_agent/wire``; CalledProcessError where protoc refuses a file."""
    for stale in (root / PACKAGE).glob("*_pb2*.py*"):
        stale.unlink()
    # Mapping the folder to the package's name makes the stubs import each other by the names that they have there.
    includes = [f"-I{PACKAGE}={PROTOS}", f"--plugin=protoc-gen-mypy_grpc={SERVICE_TYPES}"]
    outputs = ["--python_out=", "--pyi_out=", "--grpc_python_out=", "--mypy_grpc_out=only_async,quiet:"]
    files = [f"{PACKAGE}/{proto.name}" for proto in sorted(PROTOS.glob("*.proto"))]
    command = [sys.executable, "-m", "grpc_tools.protoc", *includes, *(f"{output}{root}" for output in outputs), *files]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else PROTOS.parent)
