"""The version stands in one place, ``node_agent/__init__.py``; what must repeat it says the same."""

import re
import subprocess
from importlib.metadata import version

import yaml
from click.testing import CliRunner

from node_agent import __version__
from node_agent.cli.main import cli
from tools.release import ROOT

IMAGE = re.compile(r"\bgpu-node-agent:(\d[\w.+-]*)")


def tracked(*patterns: str) -> list[str]:
    command = ["git", "ls-files", *patterns]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_image_is_named_by_the_version_wherever_it_is_named() -> None:
    named = {
        name: IMAGE.findall((ROOT / name).read_text())
        for name in tracked("*.md", "*.yaml", "*.py", "Makefile", "Dockerfile")
    }
    assert set(named["deploy/daemonset/base/daemonset.yaml"]) == {__version__}
    assert {name: found for name, found in named.items() if set(found) - {__version__}} == {}


def test_the_image_says_which_version_it_is() -> None:
    (said,) = re.findall(r'org\.opencontainers\.image\.version="([^"]+)"', (ROOT / "Dockerfile").read_text())
    assert said == __version__


def test_the_chart_has_the_version() -> None:
    charts = [yaml.safe_load((ROOT / name).read_text()) for name in tracked("deploy/*/Chart.yaml")]
    assert [chart for chart in charts if (chart["version"], chart["appVersion"]) != (__version__, __version__)] == []


def test_the_command_and_the_installed_package_say_it() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output == f"node-agent, version {__version__}\n"
    assert version("gpu-node-agent") == __version__


def test_the_changelog_is_kept_and_newest_first() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    released = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - \d{4}-\d\d-\d\d", heading) for heading in headings[1:]]
    numbers = [tuple(int(part) for part in found.groups()) for found in released if found]
    assert len(numbers) == len(headings) - 1
    assert numbers == sorted(numbers, reverse=True)
    assert tuple(int(part) for part in __version__.split(".")) >= max(numbers, default=(0, 0, 0))


def test_the_changelog_sorts_by_kind() -> None:
    kinds = re.findall(r"^### (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
