"""The rig by hand: ``python -m tests.node.rig build`` builds what is missing, ``… up`` runs a node until Ctrl-C.

``… start`` runs one in the background, with the agent's image, and ``… stop`` ends it: `make rig`, `make rig-down`.
A node's folder holds the logs and the kubeconfig; whatever ends ``up`` ends all of the node.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.node.rig import agent_image, binaries, packages
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import RigError, wait_until

ENDING = (signal.SIGINT, signal.SIGTERM)
FOLDER = agent_image.PROJECT / ".rig"
"""What a node in the background has for whoever works with it: kubeconfig, bin/kubectl, its process id and its log."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.node.rig", description=__doc__)
    parser.add_argument("command", choices=("build", "up", "start", "stop"))
    parser.add_argument("--folder", type=Path, help="where a node that is up leaves its kubeconfig")
    chosen = parser.parse_args()
    try:
        {"build": build, "up": lambda: up(chosen.folder), "start": start, "stop": stop}[chosen.command]()
    except RigError as error:
        sys.exit(str(error))


def build() -> None:
    packages.ensure()
    for name, path in (
        binaries.build_all() | binaries.build(binaries.KUBECTL, binaries.KUSTOMIZE, binaries.HELM)
    ).items():
        print(f"{name}\t{path}")


def up(folder: Path | None = None) -> None:
    with RealNode() as node:
        print(f"Ready after {node.started_in:.1f} s; folder {node.machine.folder}", flush=True)
        print(f"export KUBECONFIG={node.kubeconfig}", flush=True)
        print(f"on the node: {' '.join(node.machine.entry)} sh", flush=True)
        if folder is not None:
            agent_image.bring(node.machine)
            (folder / "kubeconfig").symlink_to(node.kubeconfig)
        # Blocked, the signals wait to be taken here; the programs are not started with them blocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        signal.sigwait(ENDING)
        print("ending the node", flush=True)


def start() -> None:
    if _runs():
        raise RigError(f"a node runs already, of {FOLDER}: `make rig-down` ends it")
    build()
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "bin").mkdir(parents=True)
    (FOLDER / "bin" / "kubectl").symlink_to(binaries.KUBECTL.target / "kubectl")
    command = [sys.executable, "-m", "tests.node.rig", "up", "--folder", str(FOLDER)]
    with (FOLDER / "log").open("w") as log:
        node = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    (FOLDER / "pid").write_text(str(node.pid))

    def ready() -> bool:
        if node.poll() is not None:
            raise RigError(f"the node did not come up:\n{(FOLDER / 'log').read_text()}")
        return (FOLDER / "kubeconfig").exists()

    print("starting the node, with the agent's image on it", flush=True)
    wait_until("the node is up", ready, timeout=900)
    print(f"export KUBECONFIG={FOLDER}/kubeconfig PATH={FOLDER}/bin:$PATH")


def stop() -> None:
    if _runs():
        os.kill(int((FOLDER / "pid").read_text()), signal.SIGTERM)
        wait_until("the node has ended", lambda: not _runs(), timeout=120)
    shutil.rmtree(FOLDER, ignore_errors=True)


def _runs() -> bool:
    """Whether the node of the last start runs: its number may be somebody else's by now."""
    try:
        return b"tests.node.rig" in Path(f"/proc/{(FOLDER / 'pid').read_text()}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main()
