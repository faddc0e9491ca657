"""A short form of the soak; `make soak` is the long one."""

import pytest

from tests.node.rig.node import RealNode
from tests.node.soak import Soak

pytestmark = pytest.mark.node


def test_under_mixed_load_nothing_is_given_out_twice_and_nothing_is_left_behind(node: RealNode) -> None:
    soak = Soak(node=node, seconds=24, seed=3)
    soak.run()
    print("", *soak.figures(), sep="\n")
    assert soak.mistakes == []
    assert soak.counts["devices seen"] > 0
    first, last = soak.samples[0], soak.samples[-1]
    assert last.files - first.files <= 20
    assert last.threads - first.threads <= 5
