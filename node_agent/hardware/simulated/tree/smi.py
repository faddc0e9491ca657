"""A stand-in for ``nvidia-smi``, as far as it sets time slices: it keeps each GPU's value in a file of the tree.

The return codes are those of its manual; what it prints is made up. A GPU whose file ``<uuid>.refuses`` is there has no
time slices. All else that it is asked it answers with what it is.
"""

from collections.abc import Iterable
from pathlib import Path

# Below the root: one file for each GPU that has been set, by its UUID.
FOLDER = "run/simulated-time-slices"

_SCRIPT = """#!/bin/sh
if [ "$1" != compute-policy ]; then
  echo 'simulated nvidia-smi of driver {version}'
  exit 0
fi
while [ $# -gt 0 ]; do
  case "$1" in
    -i) gpu=$2 ;;
    --set-timeslice) value=$2 ;;
  esac
  shift
done
folder="$(dirname "$0")/../../{folder}"
case " {uuids} " in
  *" $gpu "*) ;;
  *) echo "no simulated GPU is '$gpu'"; exit 6 ;;
esac
case "$value" in
  [0-3]) ;;
  *) echo "no time slice is '$value'"; exit 2 ;;
esac
if [ -e "$folder/$gpu.refuses" ]; then
  echo "not available on $gpu"
  exit 3
fi
mkdir -p "$folder" && echo "$value" > "$folder/$gpu.$$" && mv "$folder/$gpu.$$" "$folder/$gpu"
"""


def smi_script(version: str, uuids: Iterable[str]) -> bytes:
    """The program, for a driver version and its GPUs."""
    return _SCRIPT.format(version=version, folder=FOLDER, uuids=" ".join(uuids)).encode()


def time_slice(root: Path, uuid: str) -> int | None:
    """What a GPU was set to; None where nobody has set it."""
    try:
        return int((root / FOLDER / uuid).read_text())
    except FileNotFoundError:
        return None


def refuse(root: Path, uuid: str) -> None:
    """Let a GPU have no time slices."""
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    (root / FOLDER / f"{uuid}.refuses").touch()
