"""The books and their file, as one agent of the node sees them; ``ledger`` is what others use.

While the agent is alone its books are the truth: the file follows them, and lacks what was not worth a write. While
two share the file it is the truth: each change is made on what the file says and written at once (``custody``).
All calls block; ``ledger`` makes them on a lane.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from node_agent.allocation.changes import Change, after_boot, made
from node_agent.allocation.checkpoint import Checkpoint, decode
from node_agent.allocation.custody import Custody
from node_agent.allocation.grants import Books, Door
from node_agent.errors import CheckpointDamaged, StateError
from node_agent.kit.logs import Log
from node_agent.kit.unix import FileIdentity, identity

log = Log(__name__)


class View(Struct, frozen=True, kw_only=True):
    """What an agent knows: its ``books``, and those that are ``stored``, as far as that is sure.

    While it is ``alone`` nobody else writes. ``content`` is what ``file`` said when it was read or written last. Why
    holders are unknown, if any are: there was no file yet (``is_new``), or the ``loss`` that befell it.
    """

    books: Books
    alone: bool = False
    stored: Books | None = None
    content: bytes | None = None
    file: FileIdentity | None = None
    is_new: bool = True
    loss: str = "is new"


class Outcome(Struct, frozen=True, kw_only=True):
    """The view after some changes, what became of each of them, and what kept the file from being written, if so."""

    view: View
    answers: Sequence[Books | Exception]
    failure: Exception | None = None


class Record:
    """Keeps the file of ``checkpoint`` for an agent in a boot with an id, that has to do with ``doors``."""

    def __init__(self, *, checkpoint: Checkpoint, custody: Custody, boot_id: str, doors: frozenset[Door]) -> None:
        self._checkpoint = checkpoint
        self._custody = custody
        self._boot_id = boot_id
        self._doors = doors

    @property
    def first_view(self) -> View:
        """What is known before anybody has looked at the file."""
        return View(books=Books(unreconciled=self._doors))

    def opened(self, view: View) -> View:
        """The view after the agent has got in; a file that cannot even be read is as lost as a damaged one."""
        with self._custody.turn():
            self._checkpoint.clear_away()
            try:
                view = self._caught_up(view)
            except StateError as error:
                view = self._lost(view, f"is damaged ({error})", b"")
            return replace(view, alone=self._custody.be_alone())

    def changed(self, view: View, changes: Sequence[Change], durable: Sequence[bool]) -> Outcome:
        """Make changes, and write them if one that is ``durable`` was made or another agent has to see them.

        Where that fails none is made but those that need no write, and not even these while another agent is there.
        Raises StateError where the file has to be read and cannot be.
        """
        with self._custody.turn():
            if not view.alone:
                view = self._caught_up(view)
            books, answers = made(view.books, changes)
            worth = any(kept and isinstance(answer, Books) for kept, answer in zip(durable, answers, strict=True))
            if books == view.stored or (view.alone and not worth):
                return Outcome(view=replace(view, books=books), answers=answers)
            try:
                return Outcome(view=self._saved(view, books), answers=answers)
            except Exception as error:  # each of those who wait for the disk gets it
                needless = [view.alone and not kept for kept in durable]
                rest = [
                    change if spared else _refusing(error if isinstance(answer, Books) else answer)
                    for change, spared, answer in zip(changes, needless, answers, strict=True)
                ]
                books, answers = made(view.books, rest)
                # The file may have been replaced all the same: the next change is written whatever it is.
                return Outcome(view=replace(view, books=books, stored=None), answers=answers, failure=error)

    def has_news(self, view: View) -> bool:
        """Whether another agent may have written since."""
        return not view.alone and identity(self._checkpoint.path) != view.file

    def caught_up(self, view: View) -> View:
        """The view with what another agent has written, alone again if that has ended.

        Raises StateError where the file cannot be read.
        """
        with self._custody.turn():
            return replace(self._caught_up(view), alone=self._custody.be_alone())

    def shared(self, view: View) -> View:
        """Write down all that there is and let the agent in that asks. Raises StateError where it cannot be written."""
        with self._custody.turn():
            view = self._saved(view, view.books)
            self._custody.share()
            return replace(view, alone=False)

    def _caught_up(self, view: View) -> View:
        content = self._checkpoint.read()
        if content == view.content:
            return self._seen(view, content)
        if content is None:
            return self._lost(view, "was removed", content)
        try:
            found = decode(content)
        except CheckpointDamaged as error:
            return self._lost(view, f"is damaged ({error}; {self._set_aside()})", content)
        books = after_boot(replace(found, unreconciled=found.unreconciled & self._doors), self._boot_id)
        return self._seen(replace(view, books=books, stored=books, is_new=False, loss="was new or lost"), content)

    def _saved(self, view: View, books: Books) -> View:
        content = self._checkpoint.save(books)
        return self._seen(replace(view, books=books, stored=books), content)

    def _seen(self, view: View, content: bytes | None) -> View:
        return replace(view, content=content, file=identity(self._checkpoint.path))

    def _lost(self, view: View, loss: str, content: bytes | None) -> View:
        """The view of a file that tells nothing: whoever is known holds on, and others may hold as well."""
        log.error("the record of who holds which gpu is lost", file=self._checkpoint.path, reason=loss)
        books = replace(view.books, unreconciled=self._doors)
        return self._seen(replace(view, books=books, stored=None, is_new=content is None, loss=loss), content)

    def _set_aside(self) -> str:
        try:
            return f"kept as {self._checkpoint.set_aside()}"
        except StateError as error:
            return str(error)


def _refusing(error: Exception) -> Change:
    def refuse(_: Books) -> Books:
        raise error

    return refuse
