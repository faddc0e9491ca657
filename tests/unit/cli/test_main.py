"""The frame of the command line: help, versions, wrong words, and what loading it costs."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from node_agent.cli.main import COMMANDS, cli
from tests.unit.cli.conftest import Run


def commands(group: click.Group, *above: str) -> Iterator[tuple[str, ...]]:
    """The words of every command."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield (*above, name)
        if isinstance(found, click.Group):
            yield from commands(found, *above, name)


ALL = list(commands(cli))


def test_the_help_lists_every_command_with_what_it_does(run: Run) -> None:
    outcome = run("--help")
    assert outcome.code == 0
    listed = {line.split()[0]: line.split()[1:] for line in outcome.out.partition("Commands:")[2].splitlines() if line}
    assert listed.keys() == COMMANDS.keys()
    assert all(listed.values())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_explains_itself_and_each_of_its_options(run: Run, words: tuple[str, ...], option: str) -> None:
    outcome = run(*words, option)
    assert outcome.code == 0
    assert outcome.out.startswith(f"Usage: node-agent {' '.join(words)}")
    command: click.Command = cli
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    assert command.help
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert not [parameter.name for parameter in options if not parameter.help]


def test_the_version_is_that_of_the_package(run: Run) -> None:
    assert run("--version").lines == [f"node-agent, version {importlib.metadata.version('gpu-node-agent')}"]


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    outcome = run()
    assert "Commands:" in outcome.out + outcome.err


def test_a_word_that_is_no_command_is_refused(run: Run) -> None:
    outcome = run("stauts")
    assert outcome.code == 2
    assert "No such command 'stauts'" in outcome.err


def test_an_option_that_does_not_exist_is_refused(run: Run) -> None:
    assert run("run", "--fast").code == 2


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["--version"], {"grpc", "google", "pynvml", "rich", "kubernetes", "yaml", "msgspec", "node_agent.agent"}),
        (["status", "--check", "--socket", "/none"], {"grpc", "google", "pynvml", "rich", "kubernetes", "asyncio"}),
        (["top", "--once", "--socket", "/none"], {"grpc", "google", "pynvml", "kubernetes", "asyncio"}),
        (["simulate", "clear", "--socket", "/none"], {"grpc", "google", "rich", "kubernetes"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_loads_only_what_it_needs(words: list[str], unwanted: set[str]) -> None:
    program = f"""
import sys
from node_agent.cli.main import main
sys.argv = ["node-agent", *{words!r}]
try:
    main()
except SystemExit:
    pass
print(sorted({unwanted!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
