"""Words that no command expects: an answer or one clear line, and never a traceback."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.cli.conftest import Run

EXAMPLES = int(os.environ.get("EXAMPLES", "40"))
ODD = [
    *("", " ", "-", "--", "-1", "0", "999999999999999999999999", "1e400", "nan", "a" * 3000, "\n", "\x1b[31m"),
    *(
        "[bold]",
        "[/]",
        "%s",
        "{0}",
        "*",
        "../../../etc/shadow",
        "/dev/null",
        "/proc/self/fd",
        "/",
        "ü",
        "\udce4",
        "gpu-0",
    ),
]
WORD = st.sampled_from(ODD) | st.text(st.characters(exclude_characters="\0"), max_size=10)
# Those that answer and end; none of these options writes anything.
OPTIONS = {
    "status": ["--socket", "--json", "-o", "--check"],
    "health": ["--socket"],
    "health clear": ["--socket", "--cause", "--xid", ""],
    "topology": ["--simulate", "--config", "-o", ""],
    "explain preferred": ["--simulate", "--size", "--available", "--must-include"],
    "mig plan": ["--simulate", "--mig-configs", "--name", "--want", "--in-use", "--socket"],
    "config check": [""],
    "config health": ["--config", "--config-dir", "--label", ""],
    "config show": ["--config", "--config-dir", "--label"],
    "migrate": ["--chart", ""],
    "simulate xid": ["--socket", "--gpu", "--code", "--instance"],
    "no such command": [""],
}


@st.composite
def words(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(sorted(OPTIONS)))
    given_options = draw(st.lists(st.tuples(st.sampled_from(OPTIONS[command]), WORD), max_size=3))
    simulated = ["--simulate", "l4-2"] if "--simulate" in OPTIONS[command] else []
    return [*command.split(), *simulated, *(one for pair in given_options for one in pair if one != "" or not pair[0])]


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(words())
def test_any_words_are_answered_or_refused(run: Run, words: list[str]) -> None:
    outcome = run(*words)
    assert outcome.code in (0, 1, 2), words
    assert outcome.code == 0 or outcome.err or outcome.out, words
    assert "Traceback" not in outcome.err + outcome.out


@pytest.mark.parametrize("word", ODD)
def test_a_node_that_nobody_could_simulate_is_refused_in_few_words(run: Run, word: str) -> None:
    outcome = run("topology", "--simulate", word)
    assert outcome.code in (1, 2)
    assert 0 < len(outcome.err) < 8000


def test_a_name_that_is_no_text_is_shown_in_numbers(run: Run) -> None:
    outcome = run("config", "check", "a", os.fsdecode(b"\xe4"))
    assert outcome.code == 2
    assert "unexpected extra argument (\\udce4)" in outcome.err
