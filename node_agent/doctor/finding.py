"""What one check found."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Result(StrEnum):
    """How a check ended; SKIPPED is neither good nor bad: it could not be made, or is about nothing that is here."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILED = "failed"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``check`` names the check as ``<subject>.<what>``; ``what`` was found, ``where``, and ``fix`` is what to do."""

    check: str
    result: Result
    what: str
    where: str = ""
    fix: str = ""


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All findings of one node, in the order in which one thing rests on another."""

    node: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> bool:
        return any(one.result is Result.FAILED for one in self.findings)

    def count(self, result: Result) -> int:
        return sum(one.result is result for one in self.findings)


def ok(check: str, what: str, where: object = "") -> Finding:
    return Finding(check=check, result=Result.OK, what=what, where=str(where))


def skipped(check: str, what: str, where: object = "") -> Finding:
    return Finding(check=check, result=Result.SKIPPED, what=what, where=str(where))


def warning(check: str, what: str, where: object = "", *, fix: str) -> Finding:
    return Finding(check=check, result=Result.WARNING, what=what, where=str(where), fix=fix)


def failed(check: str, what: str, where: object = "", *, fix: str) -> Finding:
    return Finding(check=check, result=Result.FAILED, what=what, where=str(where), fix=fix)


def or_ok(found: Iterable[Finding], check: str, what: str, where: object = "") -> tuple[Finding, ...]:
    """What was found, or where that is nothing, that all is well."""
    return tuple(found) or (ok(check, what, where),)
