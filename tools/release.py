"""What a release consists of, made from the last commit alone: ``python -m tools.release`` writes it to ``dist``.

Wheel, source archive, the bill of materials of what the wheel needs (``bill``), the notes from the changelog, and the
checksums of all of these. The same commit gives the same bytes: nothing of the tree, the clock or the machine is in it.
"""

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import click

from node_agent import __version__
from tools.bill import bill

ROOT = Path(__file__).resolve().parent.parent
SUMS = "SHA256SUMS"


def notes(changelog: str, heading: str) -> str:
    """What the changelog says of a version, or of what is unreleased.

    Raises:
        click.ClickException: it has no such heading, or nothing below it.
    """
    found = re.search(rf"^## {re.escape(heading)}( - \d{{4}}-\d\d-\d\d)?\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if found is None or not found[2].strip():
        raise click.ClickException(
            f"CHANGELOG.md has nothing below a heading {heading!r}: move what is released from Unreleased to "
            f"'## {heading} - YYYY-MM-DD', or try the build with --unreleased"
        )
    return found[2].strip() + "\n"


def build(source: Path, out: Path, epoch: int) -> None:
    """Wheel and source archive of a tree, dated ``epoch`` (seconds since 1970)."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    subprocess.run(command, cwd=source, check=True, env=environment, stdout=subprocess.DEVNULL)


def sums(folder: Path) -> str:
    """The checksums of the files of a folder, as ``sha256sum --check`` reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def committed(root: Path, into: Path, *paths: str) -> int:
    """Lay out the last commit of a repository, or some of its paths, and return the commit's time.

    What is only in the tree is not there.
    """
    archive = subprocess.run(["git", "archive", "HEAD", *paths], cwd=root, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        opened.extractall(into, filter="data")
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "dist", help="An empty or new folder.")
@click.option("--unreleased", is_flag=True, help="Take the notes from Unreleased: a build to try, not a release.")
def main(out: Path, unreleased: bool) -> None:
    """Make all files of a release from the last commit."""
    if out.exists() and any(out.iterdir()):
        raise click.ClickException(f"{out} has files already: a release is made in an empty folder")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        epoch = committed(ROOT, source)
        said = notes((source / "CHANGELOG.md").read_text(), "Unreleased" if unreleased else __version__)
        build(source, out, epoch)
        (out / f"gpu-node-agent-{__version__}.cdx.json").write_text(bill(source, epoch))
    (out / "NOTES.md").write_text(said)
    (out / SUMS).write_text(sums(out))
    click.echo((out / SUMS).read_text(), nl=False)


if __name__ == "__main__":
    main()
