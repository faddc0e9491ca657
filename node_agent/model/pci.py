"""PCI addresses in the one form that the whole agent uses: ``0000:19:00.0``, as sysfs spells them."""

import re
from typing import NewType

PciAddress = NewType("PciAddress", str)

_FORM = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])\.([0-7])")


def pci_address(text: str) -> PciAddress:
    """Read a PCI address in any common spelling: NVML's ``00000000:19:00.0`` or sysfs' ``0000:19:00.0``.

    A domain above ``ffff``, as Intel's VMD has, keeps as many digits as it needs: ``10000:e1:00.0``.

    Raises:
        ValueError: the text is no PCI address.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no PCI address; expected the form 0000:19:00.0")
    domain, bus, device, function = match.groups()
    return PciAddress(f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower())
