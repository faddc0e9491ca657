"""The file of named layouts: as mig-parted's users have it, with every mistake named by its path."""

from collections.abc import Iterable
from itertools import product

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.errors import ConfigError
from node_agent.model.gpu import Gpu
from node_agent.partition.configs import Entry, named, parse, usual, wanted
from node_agent.partition.static import layout_for
from tests.fakes.builders import gpu
from tests.unit.partition.boards import NODES, rules

EXAMPLE = b"""
version: v1
mig-configs:
  half-and-half:
    - device-filter: ["0x233510DE"]
      devices: [0, 1]
      mig-enabled: true
      mig-devices: {"1g.18gb": 2, "2g.35gb": 1, "3g.71gb": 1}
    - devices: [2, 3]
      mig-enabled: false
  all-1g.18gb.me:
    - devices: all
      mig-enabled: true
      mig-devices:
        1g.18gb+me: 1
        1g.18gb: 0
  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}
"""


def h200(index: int) -> Gpu:
    return replace(gpu(index), device_id=0x2335, subsystem_id=0x18BE10DE)


NODE = [h200(index) for index in range(4)]
KEYS = st.sampled_from(["mine", "devices", "mig-enabled", "mig-devices", "1g.18gb", "1g.18gb+me", "big"])


def one_entry(**changes: object) -> bytes:
    entry = {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.18gb": 7}} | changes
    entry = {key: value for key, value in entry.items() if value != "absent"}
    return yaml.safe_dump({"version": "v1", "mig-configs": {"mine": [entry]}}).encode()


def entries(data: bytes) -> tuple[Entry, ...]:
    return named(parse(data), "mine")


def test_the_example_says_what_each_gpu_is_to_be() -> None:
    found = wanted(named(parse(EXAMPLE), "half-and-half"), NODE)
    enabled = [found[one.uuid].mig_enabled for one in NODE]
    assert enabled == [True, True, False, False]
    assert found[NODE[0].uuid].counts == {"1g.18gb": 2, "2g.35gb": 1, "3g.71gb": 1}
    assert found[NODE[3].uuid].counts == {}


def test_a_count_of_none_is_as_good_as_absent() -> None:
    assert named(parse(EXAMPLE), "all-1g.18gb.me")[0].counts == {"1g.18gb+me": 1}


def test_who_wants_mig_off_may_say_that_no_device_is_wanted() -> None:
    """NVIDIA's own examples do."""
    (entry,) = entries(one_entry(**{"mig-enabled": False, "mig-devices": {}}))
    assert (entry.mig_enabled, entry.counts) == (False, {})


def test_gpus_that_no_entry_concerns_are_left_as_they_are() -> None:
    assert wanted(entries(one_entry(devices=[2])), NODE).keys() == {NODE[2].uuid}
    assert wanted(entries(one_entry(devices=[9])), NODE) == {}


def test_the_last_entry_that_concerns_a_gpu_holds() -> None:
    data = yaml.safe_load(one_entry())
    data["mig-configs"]["mine"].append({"devices": [1], "mig-enabled": False})
    found = wanted(entries(yaml.safe_dump(data).encode()), NODE)
    assert [found[one.uuid].mig_enabled for one in NODE] == [True, False, True, True]


@pytest.mark.parametrize(
    ("listed", "concerned"),
    [
        ("0x233510DE", True),
        ("0x233510de", True),
        (["0x20B010DE", "0x233510DE"], True),
        ("0x20B010DE", False),
        ("0x23351022", False),
        ("0x233510DE:0x18BE10DE", True),
        ("0x233510DE:0x18BF10DE", False),
        ([], True),
    ],
)
def test_a_filter_takes_gpus_by_their_pci_ids(listed: object, concerned: bool) -> None:
    assert bool(wanted(entries(one_entry(**{"device-filter": listed})), [h200(0)])) == concerned


def test_a_gpu_that_does_not_tell_its_ids_passes_no_filter() -> None:
    silent = entries(one_entry(**{"device-filter": "0x233510DE"}))
    assert wanted(silent, [gpu(0)]) == {}
    bare = replace(h200(0), subsystem_id=None)
    assert wanted(entries(one_entry(**{"device-filter": "0x233510DE:0x18BE10DE"})), [bare]) == {}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "expected a section with version and mig-configs"),
        (b"[]", "expected a section with version and mig-configs"),
        (b"version: v2\nmig-configs: {a: []}", "version: expected v1"),
        (b"mig-configs: {a: []}", "version: expected v1"),
        (b"version: v1", "mig-configs: expected a section with the layouts by their names"),
        (b"version: v1\nmig-configs: {}", "mig-configs: expected a section with the layouts by their names"),
        (b"version: v1\nmig-configs: {a: {}}", "mig-configs.a: expected a list of entries"),
        (b"version: v1\nmig-configs: {a: []}\nhooks: {}", "hooks: unknown key; there is version, mig-configs"),
        (b"version: v1\nmig-configs: {a: [all]}", "mig-configs.a[0]: expected a section with "),
        (b"version: v1\nmig-configs: {a: []}\nmig-configs: {b: []}", "the key mig-configs is there twice"),
        (one_entry(devices="absent"), "mig-configs.mine[0].devices: is missing; expected all, or a list of indices"),
        (one_entry(devices="0"), "mig-configs.mine[0].devices: expected all, or a list of indices of GPUs"),
        (one_entry(devices=[0, -1]), "mig-configs.mine[0].devices[1]: expected the index of a GPU; got -1"),
        (one_entry(**{"mig-enabled": "yes please"}), "mig-configs.mine[0].mig-enabled: expected true or false"),
        (one_entry(**{"mig-enabled": "absent"}), "mig-configs.mine[0].mig-enabled: is missing"),
        (one_entry(**{"mig-enable": True}), "mig-configs.mine[0].mig-enable: unknown key; did you mean"),
        (one_entry(**{"mig-devices": "absent"}), "mig-configs.mine[0].mig-devices: is missing; with mig-enabled"),
        (one_entry(**{"mig-enabled": False}), "mig-configs.mine[0].mig-devices: has no meaning while mig-enabled is"),
        (one_entry(**{"mig-devices": ["1g.18gb"]}), "mig-configs.mine[0].mig-devices: expected a section that says"),
        (one_entry(**{"mig-devices": {"1g": 1}}), "mig-configs.mine[0].mig-devices.1g: '1g' is no MIG profile"),
        (one_entry(**{"mig-devices": {"1g.18gb": -1}}), "mig-devices.1g.18gb: expected a count; got -1"),
        (one_entry(**{"mig-devices": {"1g.18gb": True}}), "mig-devices.1g.18gb: expected a count; got True"),
        (one_entry(**{"mig-devices": {"1g.18gb": "all"}}), "mig-devices.1g.18gb: expected a count; got all"),
        (one_entry(**{"device-filter": "H200"}), "mig-configs.mine[0].device-filter: expected PCI ids"),
        (one_entry(**{"device-filter": ["0x2335"]}), "mig-configs.mine[0].device-filter[0]: expected PCI ids such as"),
    ],
)
def test_a_mistake_is_named_by_its_path(data: bytes, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(data)
    assert complaint in str(caught.value)


SCALARS = st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["all", "v1", "1g.18gb", "0x233510DE", ""])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
ENTRIES = st.dictionaries(st.sampled_from(["devices", "mig-enabled", "mig-devices", "device-filter"]), VALUES) | VALUES


@given(
    st.fixed_dictionaries(
        {
            "version": st.just("v1"),
            "mig-configs": st.dictionaries(KEYS, st.lists(ENTRIES, max_size=2) | VALUES, max_size=2),
        }
    )
    | VALUES
)
def test_whatever_the_file_says_it_is_read_or_refused_with_a_reason(document: object) -> None:
    try:
        layouts = parse(yaml.safe_dump(document).encode())
    except ConfigError as error:
        assert str(error)
    else:
        for entries in layouts.values():
            wanted(entries, NODE)


def test_a_key_without_a_value_says_nothing() -> None:
    (entry,) = entries(one_entry(**{"device-filter": None}))
    assert entry.device_filter == ()


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(one_entry(devices="none", **{"mig-enabled": 1}) + b"hooks: 1\n")
    assert str(caught.value).count("; ") >= 2


def test_a_name_that_is_not_there_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no MIG layout is named 'all-1g.18gb\+me'; there is all-1g.18gb.me"):
        named(parse(EXAMPLE), "all-1g.18gb+me")
    with pytest.raises(ConfigError, match=r"there is all-1g.18gb.me, all-enabled, half-and-half"):
        named(parse(EXAMPLE), "x")


# The usual layouts

KNOWN = {
    "a100-40gb-8": "1g.5gb 7 · 1g.5gb+me 1 · 1g.10gb 4 · 2g.10gb 3 · 3g.20gb 2 · 4g.20gb 1 · 7g.40gb 1",
    "a100-80gb-8": "1g.10gb 7 · 1g.10gb+me 1 · 1g.20gb 4 · 2g.20gb 3 · 3g.40gb 2 · 4g.40gb 1 · 7g.80gb 1",
    "h100-8": "1g.10gb 7 · 1g.10gb+me 1 · 1g.20gb 4 · 2g.20gb 3 · 3g.40gb 2 · 4g.40gb 1 · 7g.80gb 1",
    "a30-2": "1g.6gb 4 · 1g.6gb+me 1 · 2g.12gb 2 · 2g.12gb+me 1 · 4g.24gb 1",
    "h200-8": "1g.18gb 7 · 1g.18gb+me 1 · 1g.35gb 4 · 2g.35gb 3 · 3g.71gb 2 · 4g.71gb 1 · 7g.141gb 1",
    "b200-8": "1g.23gb 7 · 1g.23gb+me 1 · 1g.45gb 4 · 2g.45gb 3 · 3g.90gb 2 · 4g.90gb 1 · 7g.180gb 1",
    "gb200-4": "1g.23gb 7 · 1g.23gb+me 1 · 1g.47gb 4 · 2g.47gb 3 · 3g.93gb 2 · 4g.93gb 1 · 7g.186gb 1",
}
"""What the file that NVIDIA packages has for these boards: as many of a profile as fit, under ``all-<profile>``."""


@pytest.mark.parametrize("node", NODES)
def test_the_usual_layouts_are_those_that_nvidia_packages(node: str) -> None:
    layouts = usual([(h200(0), rules(node))])
    listed = [text.rsplit(" ", 1) for text in KNOWN[node].split(" · ")]
    for profile, count in listed:
        (entry,) = layouts[f"all-{profile.replace('+', '.')}"]
        assert entry == Entry(devices=(0,), mig_enabled=True, mig_devices={profile: int(count)})
    assert layouts.keys() == {
        "all-disabled", "all-enabled", "all-balanced", *(f"all-{name.replace('+', '.')}" for name, _ in listed)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("node", "counts"),
    [
        ("h200-8", {"1g.18gb": 2, "2g.35gb": 1, "3g.71gb": 1}),
        ("a100-40gb-8", {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}),
        ("a30-2", {"1g.6gb": 2, "2g.12gb": 1}),
    ],
)
def test_the_balanced_layout_has_small_and_large_ones(node: str, counts: dict[str, int]) -> None:
    assert usual([(h200(0), rules(node))])["all-balanced"][0].mig_devices == counts


@pytest.mark.parametrize("node", NODES)
def test_every_usual_layout_fits(node: str) -> None:
    for entries in usual([(h200(0), rules(node))]).values():
        for entry in entries:
            assert rules(node).legal(layout_for(rules(node), entry.counts))


def test_two_models_of_a_node_each_get_their_own_under_one_name() -> None:
    """Of 1g.10gb seven fit on one of the two and four on the other."""
    a100s: Iterable[tuple[Gpu, str]] = product([h200(0)], ["a100-80gb-8"])
    layouts = usual([(one, rules(node)) for one, node in [*a100s, (h200(1), "a100-40gb-8"), (h200(2), "a100-80gb-8")]])
    found = wanted(layouts["all-1g.10gb"], NODE)
    assert [found[one.uuid].counts for one in NODE[:3]] == [{"1g.10gb": 7}, {"1g.10gb": 4}, {"1g.10gb": 7}]
    assert NODE[3].uuid not in found, "what cannot be cut is not concerned"
