import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.model.inventory import Inventory
from node_agent.topology.preferred import Choice, DeviceId, Policy, Pool, PreferredRequest, preferred
from node_agent.topology.score import scores
from tests.fakes.builders import bridged_node, cube_mesh, h200_node, inventory, l4_pair, pcie_node, switched_node, uuid
from tests.unit.topology.reference import (
    Gpus,
    ask,
    ask_gpus,
    best_set,
    places,
    questions,
    share,
    shares,
    whole_gpus,
)


def given_by(choice: Choice) -> dict[int, int]:
    """How many shares each GPU gives."""
    return dict(Counter(int(device[4:12], 16) for device in choice.ids))


def all_but(pool: Pool, *in_use: DeviceId) -> set[DeviceId]:
    return set(pool.parents) - set(in_use)


def gpu_ids(*gpus: int) -> tuple[DeviceId, ...]:
    """The ids of whole GPUs."""
    return tuple(DeviceId(uuid(i)) for i in gpus)


def used(i: int, count: int) -> list[DeviceId]:
    """The first shares of a GPU."""
    return [share(i, k) for k in range(count)]


class TestWholeGpus:
    @given(questions())
    def test_the_choice_is_the_best_set_of_gpus(self, question: tuple[Inventory, Gpus, Gpus, int]) -> None:
        node, available, must, size = question
        choice = preferred(ask_gpus(size, available, must), whole_gpus(node))
        assert choice.ids == gpu_ids(*best_set(node, available, size, must))

    @given(questions(), st.sampled_from(Policy))
    def test_the_policy_makes_no_difference(self, question: tuple[Inventory, Gpus, Gpus, int], policy: Policy) -> None:
        node, available, must, size = question
        pool = Pool(scores=scores(node), parents=whole_gpus(node).parents, policy=policy)
        chosen = preferred(ask_gpus(size, available, must), pool).gpus
        assert places(chosen) == best_set(node, available, size, must)

    def test_the_choice_names_its_gpus_and_their_score(self) -> None:
        pool = whole_gpus(h200_node())
        choice = preferred(ask_gpus(2, range(8)), pool)
        assert places(choice.gpus) == (0, 1)
        assert choice.score == pool.scores.score(0b11, 0xFF)

    def test_all_that_is_available_is_given_when_all_is_asked_for(self) -> None:
        choice = preferred(ask_gpus(3, (1, 4, 6)), whole_gpus(h200_node()))
        assert places(choice.gpus) == (1, 4, 6)

    def test_a_request_for_nothing_gets_nothing(self) -> None:
        assert preferred(ask_gpus(0, range(8)), whole_gpus(h200_node())).ids == ()

    def test_with_too_few_available_the_choice_is_all_there_is(self) -> None:
        choice = preferred(ask_gpus(5, (2, 7)), whole_gpus(h200_node()))
        assert choice.ids == gpu_ids(2, 7)

    def test_a_node_without_gpus_gives_nothing(self) -> None:
        assert preferred(ask_gpus(1, ()), whole_gpus(inventory([]))).ids == ()

    def test_what_must_be_included_is_given_although_something_else_is_better(self) -> None:
        choice = preferred(ask_gpus(2, range(4), must=[1, 2]), whole_gpus(bridged_node()))
        assert places(choice.gpus) == (1, 2)

    def test_what_must_be_included_need_not_be_listed_as_available(self) -> None:
        choice = preferred(ask_gpus(2, (0, 3), must=[2]), whole_gpus(bridged_node()))
        assert places(choice.gpus) == (2, 3)

    def test_ids_are_in_the_order_of_the_bus(self) -> None:
        choice = preferred(ask_gpus(4, range(8), must=[7, 3]), whole_gpus(h200_node()))
        assert list(choice.ids) == sorted(choice.ids)


class TestUnknownIds:
    def test_an_id_that_the_pool_does_not_know_is_not_given(self) -> None:
        request = ask(2, [uuid(0), "GPU-of-another-node", uuid(5)])
        assert preferred(request, whole_gpus(h200_node())).ids == gpu_ids(0, 5)

    def test_an_unknown_id_that_must_be_included_is_given_last(self) -> None:
        request = ask(2, [uuid(0), "A-strange-id"], ["A-strange-id"])
        assert preferred(request, whole_gpus(h200_node())).ids == (*gpu_ids(0), "A-strange-id")

    def test_a_device_of_a_gpu_that_is_lost_is_not_given(self) -> None:
        parents = {DeviceId(uuid(i)): uuid(i) for i in range(3)}
        pool = Pool(scores=scores(l4_pair()), parents=parents)
        assert preferred(ask_gpus(3, range(3)), pool).ids == gpu_ids(0, 1)

    def test_a_request_that_must_include_more_than_it_asks_for_is_refused(self) -> None:
        with pytest.raises(ValueError, match="2 devices must be among a choice of 1"):
            ask_gpus(1, range(4), must=[0, 1])


class TestSpread:
    def test_two_shares_come_from_two_gpus_although_one_share_of_one_is_in_use(self) -> None:
        pool = shares(l4_pair(), (4, 4))
        for busy in (0, 1):
            choice = preferred(ask(2, all_but(pool, share(busy, 0))), pool)
            assert given_by(choice) == {0: 1, 1: 1}

    def test_the_gpu_with_the_fewest_shares_in_use_comes_first(self) -> None:
        pool = shares(l4_pair(), (4, 4))
        assert given_by(preferred(ask(1, all_but(pool, *used(0, 1))), pool)) == {1: 1}
        assert given_by(preferred(ask(1, all_but(pool, *used(1, 1))), pool)) == {0: 1}

    def test_a_gpu_far_less_used_gives_several_before_a_busy_one_gives_any(self) -> None:
        pool = shares(l4_pair(), (4, 4))
        assert given_by(preferred(ask(2, all_but(pool, *used(0, 3))), pool)) == {1: 2}

    def test_use_is_levelled_over_all_gpus(self) -> None:
        pool = shares(pcie_node(1, 4), (4, 4, 4, 4))
        choice = preferred(ask(6, all_but(pool, *used(0, 2), *used(2, 1))), pool)
        assert given_by(choice) == {0: 1, 1: 2, 2: 1, 3: 2}

    def test_among_equally_used_gpus_the_closest_give(self) -> None:
        pool = shares(bridged_node(), (2, 2, 2, 2))
        available = all_but(pool, *used(0, 1), *used(1, 1))
        assert given_by(preferred(ask(2, available), pool)) == {2: 1, 3: 1}

    def test_the_second_share_comes_from_the_equally_used_gpu_closest_to_the_first(self) -> None:
        pool = shares(bridged_node(), (2, 2, 2, 2))
        available = all_but(pool, *used(0, 1), *used(1, 1), *used(3, 1))
        assert given_by(preferred(ask(2, available), pool)) == {2: 1, 3: 1}

    def test_a_share_that_must_be_included_counts_as_used(self) -> None:
        pool = shares(l4_pair(), (4, 4))
        choice = preferred(ask(2, pool.parents, [share(0, 3)]), pool)
        assert choice.ids == (share(0, 3), share(1, 0))

    def test_shares_of_one_gpu_are_given_in_the_order_of_the_pool(self) -> None:
        pool = shares(inventory(l4_pair().gpus[:1]), (12,))
        choice = preferred(ask(3, all_but(pool, share(0, 0), share(0, 9))), pool)
        assert choice.ids == (share(0, 1), share(0, 2), share(0, 3))

    def test_more_than_the_gpus_have_in_common_still_fills_the_request(self) -> None:
        pool = shares(l4_pair(), (1, 4))
        assert given_by(preferred(ask(4, pool.parents), pool)) == {0: 1, 1: 3}

    def test_a_gpu_whose_shares_are_all_in_use_gives_none(self) -> None:
        pool = shares(l4_pair(), (2, 2))
        assert given_by(preferred(ask(2, all_but(pool, *used(0, 2))), pool)) == {1: 2}

    def test_no_choice_of_one_gpu_for_two_shares_while_another_is_as_free(self) -> None:
        pool = shares(h200_node(), (4,) * 8)
        for size in range(1, 9):
            assert set(given_by(preferred(ask(size, pool.parents), pool)).values()) == {1}

    def test_as_many_shares_as_half_the_gpus_come_from_one_numa_node(self) -> None:
        pool = shares(h200_node(), (4,) * 8)
        assert given_by(preferred(ask(4, pool.parents), pool)) == {0: 1, 1: 1, 2: 1, 3: 1}


class TestPacked:
    def test_a_gpu_in_use_is_filled_before_another_is_begun(self) -> None:
        pool = shares(l4_pair(), (7, 7), Policy.PACKED)
        assert given_by(preferred(ask(2, all_but(pool, *used(1, 1))), pool)) == {1: 2}

    def test_the_fullest_gpu_comes_first(self) -> None:
        pool = shares(pcie_node(1, 4), (4,) * 4, Policy.PACKED)
        choice = preferred(ask(3, all_but(pool, *used(1, 1), *used(2, 3))), pool)
        assert given_by(choice) == {2: 1, 1: 2}

    def test_an_empty_node_starts_with_as_few_gpus_as_can_be(self) -> None:
        pool = shares(cube_mesh(), (7,) * 8, Policy.PACKED)
        assert given_by(preferred(ask(9, pool.parents), pool)) == {0: 7, 3: 2}

    def test_of_equally_used_gpus_the_one_with_least_left_is_filled(self) -> None:
        pool = shares(l4_pair(), (4, 2), Policy.PACKED)
        assert given_by(preferred(ask(1, pool.parents), pool)) == {1: 1}

    def test_a_device_that_must_be_included_draws_the_others_to_its_gpu(self) -> None:
        pool = shares(l4_pair(), (4, 4), Policy.PACKED)
        choice = preferred(ask(3, pool.parents, [share(1, 2)]), pool)
        assert choice.ids == (share(1, 0), share(1, 1), share(1, 2))

    def test_of_equally_used_gpus_the_one_that_must_give_anyhow_is_filled(self) -> None:
        pool = shares(l4_pair(), (4, 4), Policy.PACKED)
        choice = preferred(ask(3, all_but(pool, share(0, 0)), [share(1, 2)]), pool)
        assert given_by(choice) == {1: 3}

    def test_a_gpu_is_begun_where_that_breaks_no_pair(self) -> None:
        pool = shares(bridged_node(), (2, 2, 2, 2), Policy.PACKED)
        assert given_by(preferred(ask(1, all_but(pool, *used(3, 2))), pool)) == {2: 1}


class TestDistinct:
    def test_each_share_comes_from_another_gpu_the_least_used_first(self) -> None:
        pool = shares(pcie_node(1, 4), (4,) * 4, Policy.DISTINCT)
        choice = preferred(ask(3, all_but(pool, *used(0, 3), *used(2, 1))), pool)
        assert given_by(choice) == {1: 1, 2: 1, 3: 1}

    def test_fewer_are_given_rather_than_two_of_one_gpu(self) -> None:
        pool = shares(l4_pair(), (4, 4), Policy.DISTINCT)
        assert given_by(preferred(ask(3, pool.parents), pool)) == {0: 1, 1: 1}

    def test_a_gpu_that_must_give_one_gives_no_other(self) -> None:
        pool = shares(l4_pair(), (4, 4), Policy.DISTINCT)
        assert given_by(preferred(ask(2, pool.parents, [share(1, 2)]), pool)) == {0: 1, 1: 1}

    def test_equally_used_gpus_are_chosen_to_be_close(self) -> None:
        pool = shares(bridged_node(), (2, 2, 2, 2), Policy.DISTINCT)
        assert given_by(preferred(ask(2, all_but(pool, *used(0, 1), *used(1, 1))), pool)) == {2: 1, 3: 1}


# They give as many as are asked for, as long as there are any.
FILLING = (Policy.SPREAD, Policy.PACKED)


@st.composite
def share_questions(draw: st.DrawFn, policies: Sequence[Policy] = tuple(Policy)) -> tuple[Pool, PreferredRequest]:
    node = draw(st.sampled_from((l4_pair(), bridged_node(), cube_mesh(), h200_node())))
    counts = draw(st.lists(st.integers(0, 4), min_size=len(node.gpus), max_size=len(node.gpus)))
    pool = shares(node, counts, draw(st.sampled_from(policies)))
    available = draw(st.sets(st.sampled_from(sorted(pool.parents)))) if pool.parents else set()
    must = draw(st.sets(st.sampled_from(sorted(available)), max_size=3)) if available else set()
    return pool, ask(draw(st.integers(len(must), 12)), available, must)


class TestAnyShares:
    @given(share_questions(FILLING))
    def test_a_choice_is_as_long_as_it_can_be_without_repeats_and_holds_what_must_be_in_it(
        self, question: tuple[Pool, PreferredRequest]
    ) -> None:
        pool, request = question
        ids = preferred(request, pool).ids
        assert len(ids) == len(set(ids)) == min(request.size, len(request.available))
        assert request.must_include <= set(ids) <= request.available

    @given(share_questions())
    def test_distinct_takes_one_of_each_gpu_and_of_as_many_as_it_can(
        self, question: tuple[Pool, PreferredRequest]
    ) -> None:
        pool, request = question
        distinct = Pool(scores=pool.scores, parents=pool.parents, policy=Policy.DISTINCT)
        must = {pool.parents[device] for device in request.must_include}
        chosen = [pool.parents[device] for device in preferred(request, distinct).ids]
        assert len(chosen) - len(request.must_include) == len(set(chosen) - must)
        open_to_it = {pool.parents[device] for device in request.available} - must
        assert len(set(chosen) - must) == min(request.size - len(request.must_include), len(open_to_it))

    @given(share_questions(), st.randoms(use_true_random=False))
    def test_the_order_of_the_ids_in_the_question_makes_no_difference(
        self, question: tuple[Pool, PreferredRequest], shuffle: random.Random
    ) -> None:
        pool, request = question
        assert preferred(shuffled(request, shuffle), pool) == preferred(request, pool)

    @given(share_questions())
    def test_spread_leaves_no_gpu_two_ahead_of_one_that_could_have_given(
        self, question: tuple[Pool, PreferredRequest]
    ) -> None:
        pool, request = question
        spread = Pool(scores=pool.scores, parents=pool.parents, policy=Policy.SPREAD)
        choice = preferred(request, spread)
        taken = [pool.places[device][0] for device in choice.ids if device not in request.must_include]
        left = Counter(pool.places[device][0] for device in request.available - set(choice.ids))
        level = {gpu: total - left[gpu] for gpu, total in enumerate(pool.totals)}
        for gpu in set(taken):
            assert all(level[gpu] - 1 <= level[other] for other in left)

    @given(share_questions())
    def test_packed_begins_at_most_one_gpu_that_it_does_not_finish(
        self, question: tuple[Pool, PreferredRequest]
    ) -> None:
        pool, request = question
        packed = Pool(scores=pool.scores, parents=pool.parents, policy=Policy.PACKED)
        choice = preferred(request, packed)
        taken = {pool.places[device][0] for device in choice.ids if device not in request.must_include}
        left = {pool.places[device][0] for device in request.available - set(choice.ids)}
        assert len(taken & left) <= 1


def shuffled(request: PreferredRequest, shuffle: random.Random) -> PreferredRequest:
    """The same question with its ids put in by another order."""
    ids, must = sorted(request.available), sorted(request.must_include)
    shuffle.shuffle(ids)
    shuffle.shuffle(must)
    return ask(request.size, ids, must)


class TestSpeed:
    """Far above what is measured, since machines differ; a search through all sets or partitions would take seconds."""

    def quickest(self, request: PreferredRequest, pool: Pool) -> float:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            choice = preferred(request, pool)
            times.append(time.perf_counter() - start)
            assert len(choice.ids) == request.size
        return min(times)

    def whole(self, node: Inventory, size: int, available: Iterable[int]) -> float:
        return self.quickest(ask_gpus(size, available), whole_gpus(node))

    def test_four_of_eight_gpus(self) -> None:
        assert self.whole(cube_mesh(), 4, range(8)) < 0.1

    @pytest.mark.parametrize("size", [1, 7, 8, 9, 16])
    def test_any_number_of_sixteen_gpus(self, size: int) -> None:
        assert self.whole(switched_node([None] * 16), size, range(16)) < 0.5

    def test_fifty_six_of_sixty_four_devices_on_eight_gpus(self) -> None:
        for policy in FILLING:
            pool = shares(h200_node(), (8,) * 8, policy)
            assert self.quickest(ask(56, pool.parents), pool) < 0.25

    def test_fifty_six_of_sixty_four_gpus(self) -> None:
        assert self.whole(switched_node([i // 8 for i in range(64)]), 56, range(64)) < 2.5

    def test_a_hundred_of_five_hundred_shares(self) -> None:
        pool = shares(h200_node(), (64,) * 8)
        assert self.quickest(ask(100, pool.parents), pool) < 0.25
