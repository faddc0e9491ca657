"""Whatever is called on whatever node in whatever state, the answer is a value or an error of NVML's."""

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.errors import SimulationError
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.library.calls import CALLS
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import EVERY_PROFILE, WITH_GPUS, gpu, gpus

NOT_QUERIES = ("Set", "Clear", "Reset", "Create", "Destroy", "Register", "HandleBy")


def queries() -> dict[str, Callable[[Any], Any]]:
    """The binding's functions that ask a device for something and need nothing but its handle."""
    found = {}
    for name, function in vars(pynvml).items():
        if not name.startswith("nvmlDeviceGet") or any(word in name for word in NOT_QUERIES):
            continue
        required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        if len(required) == 1:
            found[name] = function
    return found


QUERIES = queries()


def outcome(call: Callable[[], Any]) -> int:
    """The NVML code of a call; any other error passes through and fails the test."""
    try:
        call()
    except pynvml.NVMLError as error:
        code: int = error.value
        return code
    except pynvml.NVMLLibraryMismatchError:
        return int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return 0


def sweep() -> dict[str, set[int]]:
    """The outcomes of all queries on all GPUs and MIG devices that can be had."""
    handles = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handles.append(gpu(index))
        except pynvml.NVMLError:
            continue
    for handle in list(handles):
        for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                handles.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot))
            except pynvml.NVMLError:
                continue
    return {name: {outcome(lambda: query(handle)) for handle in handles} for name, query in QUERIES.items()}  # noqa: B023


EXPECTED = {
    pynvml.NVML_SUCCESS,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_FOUND,
}


def test_the_sweep_asks_for_most_of_what_is_simulated() -> None:
    assert len(QUERIES) > 60
    assert sum(name in CALLS for name in QUERIES) > 45


@pytest.mark.parametrize("name", EVERY_PROFILE)
def test_every_query_on_every_node_has_an_outcome_of_nvmls(simulate: Simulate, name: str) -> None:
    simulate(name)
    outcomes = sweep()
    assert set[int]().union(*outcomes.values()) <= EXPECTED


@pytest.mark.parametrize("name", WITH_GPUS)
def test_what_is_not_simulated_is_not_found(simulate: Simulate, name: str) -> None:
    simulate(name)
    found = {query for query, codes in sweep().items() if codes != {pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}}
    assert {"nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber"} <= found
    assert "nvmlDeviceGetFanSpeed" not in found


@pytest.mark.parametrize("name", WITH_GPUS)
def test_a_lost_gpu_answers_no_query_at_all(simulate: Simulate, name: str) -> None:
    node = simulate(name)
    handle = gpu(0)
    node.faults.lose(0)
    codes = {outcome(lambda: query(handle)) for query in QUERIES.values()}  # noqa: B023
    assert codes <= {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}


# A fault is given by its method and its arguments; the GPU is one of the first three, or one that is not there.
GPU = st.integers(0, 3)
FAULTS = st.one_of(
    st.tuples(st.just("xid"), GPU, st.integers(-1, 200)),
    st.tuples(st.just("lose"), GPU),
    st.tuples(st.just("restore"), GPU),
    st.tuples(st.just("unplug"), GPU),
    st.tuples(st.just("plug"), GPU),
    st.tuples(st.just("load"), GPU, st.floats(-1, 2)),
    st.tuples(st.just("ecc"), GPU, st.sampled_from(["corrected", "uncorrected", "none"])),
    st.tuples(st.just("recovery_action"), GPU, st.sampled_from(["none", "gpu-reset", "what"])),
    st.tuples(st.just("start_process"), GPU, st.integers(1, 3)),
    st.tuples(st.just("stop_process"), GPU, st.integers(1, 3)),
    st.tuples(st.just("fail"), st.sampled_from(["nvmlDeviceGetName", "nvmlDeviceGetMigMode"]), st.just("UNKNOWN")),
    st.tuples(st.just("clear")),
    st.tuples(st.just("driver"), st.sampled_from(["loaded", "not-loaded", "version-mismatch"])),
)


@given(st.sampled_from(["a30-2", "l4-2", "gb10-1"]), st.lists(FAULTS, max_size=12))
@settings(max_examples=60)
def test_no_history_of_faults_breaks_the_library(profile: str, history: list[tuple[Any, ...]]) -> None:
    node = SimulatedNode(load_profile(profile))
    with install(node):
        pynvml.nvmlInit()
        for method, *arguments in history:
            try:
                getattr(node.faults, method)(*arguments)
            except SimulationError:
                continue
        outcome(sweep)
        node.faults.clear()
        node.faults.driver("loaded")
        for slot in range(len(node.profile.gpus)):
            node.faults.restore(slot)
            node.faults.plug(slot)
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        assert len(gpus()) == len(node.profile.gpus)
        assert set[int]().union(*sweep().values()) <= EXPECTED
        pynvml.nvmlShutdown()


def test_many_threads_may_ask_at_once(h200: SimulatedNode) -> None:
    names: list[str] = []
    wrong: list[BaseException] = []

    def ask(index: int) -> None:
        try:
            for _ in range(50):
                names.append(pynvml.nvmlDeviceGetName(gpu(index)))
                pynvml.nvmlDeviceGetMemoryInfo(gpu(index))
                h200.faults.xid(index, 31)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(names) == 400
