"""The rig by hand: ``python -m tests.node.rig build`` builds what is missing, ``… up`` runs a node until Ctrl-C.

A node's folder holds the logs and the kubeconfig; whatever ends ``up`` ends all of the node.
"""

import argparse
import signal

from tests.node.rig import binaries, packages
from tests.node.rig.node import RealNode

ENDING = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.node.rig", description=__doc__)
    parser.add_argument("command", choices=("build", "up"))
    if parser.parse_args().command == "up":
        up()
    else:
        build()


def build() -> None:
    packages.ensure()
    for name, path in (binaries.build_all() | binaries.build(binaries.KUSTOMIZE, binaries.HELM)).items():
        print(f"{name}\t{path}")


def up() -> None:
    with RealNode() as node:
        print(f"Ready after {node.started_in:.1f} s; folder {node.machine.folder}", flush=True)
        print(f"export KUBECONFIG={node.kubeconfig}", flush=True)
        print(f"on the node: {' '.join(node.machine.entry)} sh", flush=True)
        # Blocked, the signals wait to be taken here; the programs are not started with them blocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        signal.sigwait(ENDING)
        print("ending the node", flush=True)


if __name__ == "__main__":
    main()
