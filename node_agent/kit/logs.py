"""Logs as events and their facts: ``log.info("gpu withdrawn", gpu="gpu-2", reason="xid 79")``.

Facts are key-value pairs, so that a line can be searched by machine and read by people. ``configure`` chooses the
form of the lines; ``Steady`` keeps a lasting trouble down to a few lines a minute.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import IO, Any

FACTS = "facts"

# What a word of a text line may hold without quotes, and the two ways to quote.
_PLAIN = re.compile(r'[^ "=\\]+')
_QUOTED, _ESCAPED = json.JSONEncoder(ensure_ascii=False).encode, json.JSONEncoder().encode


class Log:
    """A named logger whose lines carry facts."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **facts: object) -> None:
        self._write(logging.DEBUG, event, facts)

    def info(self, event: str, /, **facts: object) -> None:
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, /, **facts: object) -> None:
        self._write(logging.WARNING, event, facts)

    def error(self, event: str, /, **facts: object) -> None:
        self._write(logging.ERROR, event, facts)

    def exception(self, event: str, **facts: object) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._write(logging.ERROR, event, facts, traceback=True)

    def _write(self, level: int, event: str, facts: dict[str, Any], traceback: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            # Not by Logger.log, which takes as long again to find the caller's line, and no form of ours shows that.
            error = sys.exc_info() if traceback else None
            record = logging.LogRecord(self._logger.name, level, "", 0, event, None, error)
            record.__dict__[FACTS] = facts
            self._logger.handle(record)


class Steady:
    """Passes a trouble on when it is new or another one, and again once a minute while it lasts."""

    def __init__(self, period: float = 60.0) -> None:
        self._period = period
        self._trouble: str | None = None
        self._said = 0.0

    def should_say(self, trouble: str) -> bool:
        now = time.monotonic()
        if trouble == self._trouble and now - self._said < self._period:
            return False
        self._trouble, self._said = trouble, now
        return True

    def clear(self) -> None:
        self._trouble = None


class _Text(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO event key=value``: logfmt, for people and for grep."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, object] = getattr(record, FACTS, {})
        words = [
            _timestamp(record),
            record.levelname,
            record.getMessage(),
            *(f"{k}={_word(v)}" for k, v in facts.items()),
        ]
        traceback = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return " ".join(words) + traceback


class _Json(logging.Formatter):
    """One JSON object a line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {"time": _timestamp(record), "level": record.levelname.lower(), "logger": record.name}
        line["event"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        for name, fact in getattr(record, FACTS, {}).items():
            line[f"{name}_" if name in line else name] = fact
        return json.dumps(line, default=_plain)


_FORMS: Mapping[str, type[logging.Formatter]] = {"text": _Text, "json": _Json}


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _plain(value: object) -> object:
    return sorted(value, key=str) if isinstance(value, (set, frozenset)) else str(value)


def _word(value: object) -> str:
    """One word of a text line; quoted where it could be read as more than one, or move a terminal's cursor."""
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)
    if isinstance(value, (list, tuple)):
        value = ",".join(str(item) for item in value)
    text = str(value)
    if not text.isprintable():
        return _ESCAPED(text)
    return text if _PLAIN.fullmatch(text) else _QUOTED(text)


def configure(level: str = "info", form: str = "text", stream: IO[str] | None = None) -> None:
    """Send all logs to ``stream`` (standard error by default) in ``form`` ``text`` or ``json``.

    ``level`` is for the agent's own lines; libraries are heard from warnings up.
    """
    # No line shows these, and each line would ask for them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    target = logging.StreamHandler(stream or sys.stderr)
    target.setFormatter(_FORMS[form]())
    logging.basicConfig(level=logging.WARNING, handlers=[target], force=True)
    change(level, form)


def change(level: str, form: str) -> None:
    """Say more or less from now on, of the agent's own lines, and say it in another form."""
    logging.getLogger("node_agent").setLevel(level.upper())
    for target in logging.getLogger().handlers:
        if isinstance(target.formatter, tuple(_FORMS.values())):
            target.setFormatter(_FORMS[form]())
