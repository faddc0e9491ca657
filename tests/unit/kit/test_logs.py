"""A log line is an event and its facts, on one line, in a form that machines can read back."""

import io
import json
import logging
import re
import shlex
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.kit.logs import Log, Steady, change, configure

log = Log("node_agent.test")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    root.handlers[:] = []
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(form: str, event: str, **facts: object) -> str:
    stream = io.StringIO()
    configure("info", form, stream)
    log.info(event, **facts)
    return stream.getvalue()


def after_time(line: str) -> str:
    return line.partition("Z ")[2]


def test_a_text_line_is_time_level_event_and_facts() -> None:
    line = written("text", "gpu withdrawn", gpu="gpu-2", xid=79)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO gpu withdrawn gpu=gpu-2 xid=79\n", line)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "hi"', r'"say \"hi\""'),
        (r"C:\temp", r'"C:\\temp"'),
        ("two\nlines", r'"two\nlines"'),
        ("back\rhere", r'"back\rhere"'),
        ("\x1b[31mred", r'"\u001b[31mred"'),
        ("\x9b31mred", r'"\u009b31mred"'),
        ("\u2028", r'"\u2028"'),
        ("größe", "größe"),
        (None, "None"),
        (0.5, "0.5"),
        (True, "True"),
        (["gpu-0", "gpu-1"], "gpu-0,gpu-1"),
        (("gpu 0", "gpu-1"), '"gpu 0,gpu-1"'),
        (frozenset({"b", "a", "c"}), "a,b,c"),
        ([], '""'),
        (ValueError("no such\ndevice"), r'"no such\ndevice"'),
    ],
)
def test_a_fact_is_one_word_and_quoted_where_it_must_be(value: object, word: str) -> None:
    assert after_time(written("text", "event", fact=value)) == f"INFO event fact={word}\n"


@given(facts=st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text(max_size=20), max_size=4))
def test_whatever_the_facts_are_a_text_line_is_one_line_of_printable_words(facts: dict[str, str]) -> None:
    line = written("text", "event", **facts)
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    words = shlex.split(after_time(line).replace("'", "_"))
    assert [word.partition("=")[0] for word in words[2:]] == list(facts)


def test_a_json_line_is_one_object_with_time_level_logger_event_and_facts() -> None:
    line = json.loads(written("json", "gpu withdrawn", gpu="gpu-2", xid=79, names=("a", "b"), since=None))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "info",
        "logger": "node_agent.test",
        "event": "gpu withdrawn",
        "gpu": "gpu-2",
        "xid": 79,
        "names": ["a", "b"],
        "since": None,
    }


def test_json_facts_of_other_types_are_text_and_sets_are_sorted_lists() -> None:
    line = json.loads(written("json", "event", error=ValueError("broken"), ids={"b", "a"}))
    assert line["error"] == "broken"
    assert line["ids"] == ["a", "b"]


def test_a_fact_never_hides_what_every_json_line_has() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    log.info("real event", event="fact", level="fact", time="fact", logger="fact")
    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"], line["logger"]) == ("real event", "info", "node_agent.test")
    assert (line["event_"], line["level_"], line["time_"], line["logger_"]) == ("fact",) * 4


@given(facts=st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), st.text() | st.integers() | st.booleans()))
def test_json_facts_come_back_as_they_were(facts: dict[str, object]) -> None:
    text = written("json", "event", **facts)
    assert text.count("\n") == 1
    assert {name: value for name, value in json.loads(text).items() if name in facts} == facts


def test_percent_signs_in_an_event_are_only_percent_signs() -> None:
    assert after_time(written("text", "50% used %s")) == "INFO 50% used %s\n"


@pytest.mark.parametrize(
    ("level", "said"),
    [("debug", "diwe"), ("info", "iwe"), ("warning", "we"), ("error", "e")],
)
def test_only_lines_of_the_level_and_above_are_written(level: str, said: str) -> None:
    stream = io.StringIO()
    configure(level, "text", stream)
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    assert "".join(line.split()[2] for line in stream.getvalue().splitlines()) == said


def test_lines_of_other_libraries_get_the_same_form() -> None:
    stream = io.StringIO()
    configure("info", "text", stream)
    logging.getLogger("asyncio").warning("took %.1f seconds", 2)
    assert after_time(stream.getvalue()) == "WARNING took 2.0 seconds\n"


@pytest.mark.parametrize("say", [log.exception, logging.getLogger("asyncio").exception], ids=["own", "library's"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_follows_or_goes_into_the_object(form: str, say: Callable[[str], None]) -> None:
    stream = io.StringIO()
    configure("info", form, stream)
    try:
        raise ValueError("broken")
    except ValueError:
        say("task failed")
    text = stream.getvalue()
    if form == "json":
        assert json.loads(text)["traceback"].endswith("ValueError: broken")
    else:
        assert after_time(text).startswith("ERROR task failed\nTraceback (most recent call last):\n")
        assert text.endswith("ValueError: broken\n")


def test_configuring_again_replaces_the_form_and_does_not_double_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    configure("info", "text")
    log.info("once")
    assert after_time(capsys.readouterr().err) == "INFO once\n"


@pytest.mark.parametrize(("level", "form"), [("loud", "text"), ("info", "xml")])
def test_a_level_or_form_that_does_not_exist_is_an_error(level: str, form: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        configure(level, form)


def test_a_lasting_trouble_is_said_once_a_period() -> None:
    steady = Steady(period=60.0)
    assert [steady.should_say("no driver") for _ in range(100)] == [True] + [False] * 99


def test_a_lasting_trouble_is_said_again_after_the_period() -> None:
    steady = Steady(period=0.0)
    assert steady.should_say("no driver")
    assert steady.should_say("no driver")


def test_another_trouble_is_said_at_once_and_so_is_one_that_comes_back() -> None:
    steady = Steady()
    assert steady.should_say("no driver")
    assert steady.should_say("no GPUs")
    assert not steady.should_say("no GPUs")
    steady.clear()
    assert steady.should_say("no GPUs")


def test_level_and_form_may_change_while_it_is_written() -> None:
    stream = io.StringIO()
    configure("warning", "text", stream)
    foreign = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(foreign)
    log.info("unheard")
    change("debug", "json")
    log.debug("heard", gpu="gpu-2")
    (line,) = stream.getvalue().splitlines()
    assert (json.loads(line)["event"], json.loads(line)["gpu"]) == ("heard", "gpu-2")
    change("info", "text")
    log.info("in words")
    assert after_time(stream.getvalue().splitlines()[1]) == "INFO in words"
    assert foreign.formatter is None
