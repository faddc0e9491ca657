"""Every common spelling of a PCI address becomes the one that sysfs uses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.model.pci import pci_address


@pytest.mark.parametrize(
    ("spelling", "address"),
    [
        ("0000:19:00.0", "0000:19:00.0"),
        ("00000000:19:00.0", "0000:19:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("000A:C1:1F.7", "000a:c1:1f.7"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
    ],
)
def test_a_spelling_becomes_the_address_that_sysfs_uses(spelling: str, address: str) -> None:
    assert pci_address(spelling) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "19:00.0",
        "000:19:00.0",
        "000000000:19:00.0",
        "0000:19:00",
        "0000:19:00.8",
        "0000:19:20.0",
        "0000:1g:00.0",
        "0000:19:00.0\n",
        " 0000:19:00.0",
        "0000:٣٣:00.0",
        "0000-19-00.0",
    ],
)
def test_what_is_no_address_is_an_error_that_shows_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no PCI address; expected the form 0000:19:00\.0") as caught:
        pci_address(text)
    assert repr(text) in str(caught.value)


@given(domain=st.integers(0, 2**32 - 1), bus=st.integers(0, 255), device=st.integers(0, 31), function=st.integers(0, 7))
def test_the_drivers_and_the_kernels_spelling_of_one_place_are_one_address(
    domain: int, bus: int, device: int, function: int
) -> None:
    kernel = f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
    driver = f"{domain:08X}:{bus:02X}:{device:02X}.{function:x}"
    assert pci_address(driver) == pci_address(kernel) == kernel


@given(st.text(max_size=20))
def test_no_text_does_anything_but_become_an_address_or_raise(text: str) -> None:
    try:
        address = pci_address(text)
    except ValueError:
        return
    assert pci_address(address) == address
