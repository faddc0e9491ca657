"""Waiting for what the GPU Operator says is ready."""

from pathlib import Path

import pytest

from node_agent.errors import DriverUnavailable
from node_agent.hardware.validations import Validations


def test_who_waits_for_nothing_needs_no_folder(tmp_path: Path) -> None:
    Validations(folder=tmp_path / "none").check()


def test_every_file_that_is_not_there_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "driver-ready").touch()
    both = Validations(folder=tmp_path, wanted=("driver", "toolkit"))
    with pytest.raises(
        DriverUnavailable, match=r"toolkit-ready is not there; .* \(agent\.gpuOperator\.waitFor\)"
    ) as told:
        both.check()
    assert "driver-ready" not in str(told.value)
    (tmp_path / "toolkit-ready").touch()
    both.check()
