"""Puts specs where the runtimes look for them, and takes them away.

A file is replaced as a whole or not at all, only by a spec that was checked, and only when something changed: runtimes
watch the folder and read all of it after each change. Whether a spec is to be written or removed the caller decides.
A transient one need not outlive a power cut: whoever it is for is prepared anew in each boot.
"""

from pathlib import Path

from node_agent.cdi.edits import Spec, encode
from node_agent.cdi.names import file_name, transient_of
from node_agent.cdi.validate import validate
from node_agent.errors import CdiError
from node_agent.kit.files import abandoned, remove, write_atomic


class SpecWriter:
    """Writes specs into one CDI folder, such as ``/var/run/cdi``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, spec: Spec, transient: str | None = None, *, checked: bool = False) -> bool:
        """Make the spec the one that runtimes read of its kind; True where that changed anything.

        ``transient`` names one of several specs of a kind, such as a claim's. One that is ``checked`` is made of parts
        that were validated. Raises InvalidSpec where the spec is not one, CdiError where the folder cannot be written;
        what was there before is then still there.
        """
        if not checked:
            validate(spec)
        path, content = self._folder / file_name(spec.kind, transient), encode(spec)
        try:
            if path.exists() and path.read_bytes() == content:
                return False
            self._make_folder()
            write_atomic(path, content, mode=0o644, lasting=transient is None)
        except OSError as error:
            raise self._unwritable(path, error) from error
        return True

    def remove(self, kind: str, transient: str | None = None) -> bool:
        """Take a spec away: a node without devices has none. True where there was one; raises CdiError as ``write``."""
        path = self._folder / file_name(kind, transient)
        if not path.exists():
            return False
        try:
            remove(path, lasting=transient is None)
        except OSError as error:
            raise self._unwritable(path, error) from error
        return True

    def transients(self, kind: str) -> frozenset[str]:
        """Which specs of a kind there are beside its lasting one. What a writer that was killed has left is removed,
        once nobody can be writing it any more, such as another agent in an update. Raises CdiError as ``write``.
        """
        for left in abandoned(self._folder, f"{file_name(kind).removesuffix('.json')}_*"):
            try:
                left.unlink(missing_ok=True)
            except OSError as error:
                raise self._unwritable(left, error) from error
        names = (transient_of(kind, path.name) for path in self._folder.glob("*.json"))
        return frozenset(name for name in names if name)

    def _make_folder(self) -> None:
        if not self._folder.exists():
            self._folder.mkdir(parents=True)
            # The umask of the agent must not hide the folder from a runtime that runs as another user.
            self._folder.chmod(0o755)

    @staticmethod
    def _unwritable(path: Path, error: OSError) -> CdiError:
        return CdiError(
            f"cannot change the CDI spec {path}: {error.strerror or error}; "
            "the agent needs the CDI folder of the host, mounted so that it can write there"
        )
