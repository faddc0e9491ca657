"""The generated pages say all there is, and nothing that is not."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent import errors
from node_agent.config.file import File
from node_agent.config.notices import flat
from node_agent.config.sources import VARIABLES
from node_agent.dra.attribute_names import ATTRIBUTES, CAPACITIES
from node_agent.dra.slices import PoolSettings, laid_out
from node_agent.model.health import Reason
from node_agent.reporting.told import CONDITIONS, EVENTS
from tests.fakes.nodes import inventory_of
from tools import errors_page, objects_pages, settings_page

CODE = Path(errors.__file__).parent
SETTINGS = (
    PoolSettings(groups=True),
    PoolSettings(shares=lambda gpu: True),
    PoolSettings(on_demand=lambda gpu: True),
)


def code(*packages: str) -> Iterator[str]:
    """The modules of packages, but for the tables that the pages are made from."""
    files = (path for package in packages for path in sorted((CODE / package).rglob("*.py")))
    return (path.read_text() for path in files if path.name != "told.py")


def cells(page: str, section: str = "") -> list[list[str]]:
    """The rows of a page's tables, from the heading on up to the next one."""
    part = page.partition(f"## {section}\n")[2].split("\n## ")[0] if section else page
    rows = [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in part.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "---"]


def test_all_attributes_and_capacities_that_simulated_nodes_publish_are_explained_and_no_others() -> None:
    attributes: set[str] = set()
    capacities: set[str] = set()
    for profile in ("h200-8", "gb200-4", "a30-2"):
        inventory = inventory_of(profile)
        for settings in SETTINGS:
            for device in laid_out(inventory, settings).devices:
                attributes |= device.content["attributes"].keys()
                capacities |= device.content.get("capacity", {}).keys()
    assert attributes == ATTRIBUTES.keys()
    assert {re.sub(r"\d+$", "<n>", name) for name in capacities} == CAPACITIES.keys()


def test_an_attribute_has_its_type_and_an_example() -> None:
    rows = {row[0]: row[1:] for row in cells(objects_pages.attributes_page())}
    assert rows["`gpuCount`"][:2] == ["int", "`4`"]
    assert rows["`migCapable`"][:2] == ["bool", "`true`"]
    assert rows["`resource.kubernetes.io/pcieRoot`"][0] == "string"


def test_every_event_is_explained_and_no_other() -> None:
    written = {word for text in code("reporting", "agent") for word in re.findall(r'"(GPUs?[A-Z][a-z]\w+)"', text)}
    conditions = {reason for reasons in CONDITIONS.values() for reason in reasons} | {"GPUHealthy"}
    assert written - (conditions - EVENTS.keys()) == EVENTS.keys()


def test_every_reason_for_which_the_agent_is_not_ready_is_explained() -> None:
    (text,) = [text for text in code("reporting") if "def parts_of" in text]
    blocking = re.findall(r'_part\("\w+", PartState\.(?:FAILED|WAITING)[^"]*"(\w+)"', text)
    assert len(blocking) > 8
    assert set(blocking) <= CONDITIONS["Node: GPUAgentReady"].keys()


def test_every_reason_of_a_condition_stands_in_the_code() -> None:
    text = "\n".join(code("reporting", "dra"))
    assert [one for reasons in CONDITIONS.values() for one in reasons if f'"{one}"' not in text] == []


def test_every_cause_has_the_effect_of_its_taint() -> None:
    effects = {row[0]: row[1] for row in cells(objects_pages.objects_page(), "Taints of devices")}
    assert {f"`gpu.nvidia.com/{reason}`" for reason in Reason} <= effects.keys()
    assert effects["`gpu.nvidia.com/gpu-lost`"] == "NoSchedule"
    assert effects["`gpu.nvidia.com/pcie-degraded`"] == "None"
    assert effects["`gpu.nvidia.com/not-monitored`"] == "no taint"


def test_every_error_is_said_to_be_met_somewhere_and_what_to_do_about_it() -> None:
    kinds = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, Exception)}
    assert errors_page.WHAT_TO_DO.keys() == kinds
    assert {row[0].removeprefix("└ ").strip("`") for row in cells(errors_page.page())[1:]} == kinds


def test_every_key_of_the_file_has_a_row() -> None:
    page = settings_page.page()
    rows = {
        f"{section}.{row[0].strip('`')}"
        for section in re.findall(r"^## (.+)$", page, re.MULTILINE)
        for row in cells(page, section)
    }
    plain = {path for path, value in flat(File()).items() if value not in (None, [], ())}
    assert {path for path in plain if path != "version" and path not in rows} == set()


@pytest.mark.parametrize(
    ("section", "key", "said"),
    [
        ("agent.dra", "groups", ["true, false", "`false`", "", "live"]),
        ("agent.paths", "cdiDir", ["an absolute path", '`"/var/run/cdi"`', "", "restart"]),
        (
            "flags",
            "migStrategy",
            ["`mixed`, `none`, `single`", '`"none"`', "`MIG_STRATEGY`, `GFD_MIG_STRATEGY`", "live"],
        ),
        ("flags", "gdsEnabled", ["true, false", "`false`", "`GDS_ENABLED`", "does nothing: GPUDirect Storage"]),
        ("resources.gpus[]", "name", ["some text", "needed", "", "live"]),
    ],
)
def test_a_key_has_its_values_default_variable_and_when_a_change_counts(
    section: str, key: str, said: list[str]
) -> None:
    (row,) = [row for row in cells(settings_page.page(), section) if row[0] == f"`{key}`"]
    assert row[1:4] == said[:3]
    assert row[4].startswith(said[3])


def test_every_variable_is_on_the_page() -> None:
    page = settings_page.page()
    assert [name for _, names in VARIABLES.values() for name in names if f"`{name}`" not in page] == []
