"""What the guided fuzzer begins with is good: from what is refused at once it would find no way in."""

import pytest

from tests.guided.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_takes_its_own_seeds(name: str) -> None:
    target = TARGETS[name]
    assert target.seeds
    for seed in target.seeds:
        target.take(seed)
