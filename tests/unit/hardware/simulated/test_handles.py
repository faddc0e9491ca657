"""Handles name places: the same for ever, and none that was not given out."""

from node_agent.hardware.simulated.handles import Handles


def test_a_place_keeps_its_address() -> None:
    handles = Handles()
    first = handles.address("gpu", 0)
    assert handles.address("gpu", 1) != first
    assert handles.address("gpu", 0) == first


def test_an_address_leads_back_to_its_place() -> None:
    handles = Handles()
    places: list[tuple[str | int, ...]] = [("gpu", 0), ("mig", 0, 3), ("instance", 0, 3), ("compute", 0, 3, 0)]
    assert [handles.place(handles.address(*place)) for place in places] == places


def test_an_address_that_was_not_given_out_is_no_place() -> None:
    handles = Handles()
    address = handles.address("gpu", 0)
    for wrong in (None, 0, 1, address + 1, address - 0x1000, address + 0x1000):
        assert handles.place(wrong) == ()
