"""The catalogue of Xids is whole, and what it says of each number hangs together."""

import pytest

from node_agent.health import xids
from node_agent.health.policy import Action, ClearedBy
from node_agent.health.xids import XidScope, catalogue, xid

# Numbers that NVIDIA's catalogue of October 2025 lists as unused; above 172 they are known from newer drivers only.
UNUSED = {
    *range(1, 8), 9, 10, 12, *range(15, 25), *range(26, 31), *range(33, 37), 42, 47, *range(49, 54), *range(55, 60),
    61, 65, 73, 81, 87, 90, 91, *range(111, 119), *range(122, 126), 138,
}  # fmt: skip

# What every health system that is in wide use takes a GPU, or its links, out for.
FATAL = {48, 74, 79, 95, 119, 120, 140}


def test_every_number_in_use_is_in_the_catalogue_and_no_other() -> None:
    assert catalogue.keys() == set(range(1, 177)) - UNUSED


def test_no_number_is_listed_twice() -> None:
    listed = [code for names in xids._CATALOGUE.values() for code in names]

    assert len(listed) == len(catalogue)


def test_each_number_is_found_under_itself() -> None:
    assert all(xid(code) is known and known.code == code for code, known in catalogue.items())


@pytest.mark.parametrize("code", [3, 51, 138, 177, 999])
def test_an_unknown_number_takes_the_gpu_out_until_the_driver_asks_for_no_recovery(code: int) -> None:
    unknown = xid(code)

    assert (unknown.code, unknown.scope) == (code, XidScope.DEVICE)
    assert (unknown.action, unknown.clears) == (Action.WITHDRAW, ClearedBy.RECOVERY)


def test_what_an_application_does_never_takes_a_gpu_out() -> None:
    actions = {known.action for known in catalogue.values() if known.scope is XidScope.APPLICATION}

    assert actions == {Action.IGNORE, Action.COUNT}


def test_nvidias_own_set_of_application_faults_is_ignored() -> None:
    ignored = {
        known.code
        for known in catalogue.values()
        if known.scope is XidScope.APPLICATION and known.action is Action.IGNORE
    }

    assert ignored == {13, 31, 43, 45, 68, 109}


@pytest.mark.parametrize("code", sorted(FATAL))
def test_what_all_agree_to_be_fatal_takes_it_out(code: int) -> None:
    assert xid(code).action is Action.WITHDRAW


def test_nothing_evicts_by_default() -> None:
    assert Action.EVICT not in {known.action for known in catalogue.values()}


def test_what_costs_something_needs_more_than_a_look_to_be_over() -> None:
    costly = [known for known in catalogue.values() if known.action in (Action.DEGRADE, Action.WITHDRAW)]

    assert all(known.clears in (ClearedBy.RECOVERY, ClearedBy.RESET) for known in costly)


@pytest.mark.parametrize("code", [74, 136, 149, 155])
def test_nvlink_faults_are_about_links(code: int) -> None:
    assert xid(code).scope is XidScope.LINKS


def test_names_are_short_enough_for_a_line() -> None:
    assert all(0 < len(known.name) <= 70 for known in catalogue.values())
