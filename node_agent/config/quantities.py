"""Amounts of memory as Kubernetes writes them: ``20Gi``, ``500M``, ``1.5Gi``."""

import re

MIB = 1 << 20
"""What MPS counts memory in: no limit can be less."""

_UNITS = {"": 1, **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P"), 1)}}
_UNITS |= {unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)}

PATTERN = rf"^[0-9]{{1,15}}(\.[0-9]{{1,9}})?({'|'.join(_UNITS)})$"


def amount(quantity: str | int) -> int:
    """The whole bytes of text that follows ``PATTERN``; a bare number counts bytes already."""
    if isinstance(quantity, int):
        return quantity
    number, unit = re.fullmatch("([0-9.]+)([A-Za-z]*)", quantity).groups()  # type: ignore[union-attr]
    return int(float(number) * _UNITS[unit])
