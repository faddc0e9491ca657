"""NVML's errors and texts in the agent's terms."""

import ctypes
import threading
import time
from typing import Any

import pynvml
import pytest

from node_agent.errors import (
    CallTimedOut,
    DeviceLost,
    DriverUnavailable,
    HardwareError,
    InUse,
    LibraryUnusable,
    NotSupported,
)
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Answers, Calls, figure, text, translated
from node_agent.hardware.simulated import SimulatedNode

KINDS = {
    "UNINITIALIZED": DriverUnavailable,
    "DRIVER_NOT_LOADED": DriverUnavailable,
    "LIBRARY_NOT_FOUND": LibraryUnusable,
    "LIB_RM_VERSION_MISMATCH": LibraryUnusable,
    "NOT_SUPPORTED": NotSupported,
    "FUNCTION_NOT_FOUND": NotSupported,
    "VGPU_ECC_NOT_SUPPORTED": NotSupported,
    "DEPRECATED": NotSupported,
    "ARGUMENT_VERSION_MISMATCH": NotSupported,
    "GPU_IS_LOST": DeviceLost,
    "TIMEOUT": CallTimedOut,
    "IN_USE": InUse,
}
CODES = {
    name.removeprefix("NVML_ERROR_"): code for name, code in vars(pynvml).items() if name.startswith("NVML_ERROR_")
}


def first(session: Session) -> Any:
    return session.handle(session.gpus[0])


@pytest.mark.parametrize("name", CODES)
def test_each_nvml_error_is_one_kind_of_the_agents_errors(name: str) -> None:
    error = translated(pynvml.NVMLError(CODES[name]), "nvmlDeviceGetName")
    assert type(error) is KINDS.get(name, HardwareError)
    assert error.code == CODES[name]
    assert error.call == "nvmlDeviceGetName"
    assert str(error).startswith("nvmlDeviceGetName: ")
    assert f"(NVML error {CODES[name]})" in str(error)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("DRIVER_NOT_LOADED", "modprobe nvidia"),
        ("LIBRARY_NOT_FOUND", "libnvidia-ml.so.1"),
        ("LIB_RM_VERSION_MISMATCH", "reload the module or reboot"),
        ("GPU_IS_LOST", "reset or a reboot"),
        ("NO_PERMISSION", "privileged"),
        ("IN_USE", "wait until it is free"),
    ],
)
def test_an_error_says_what_to_do(name: str, advice: str) -> None:
    assert advice in str(translated(pynvml.NVMLError(CODES[name]), "nvmlInit"))


def test_an_error_that_nobody_knows_yet_keeps_its_number() -> None:
    error = translated(pynvml.NVMLError(777), "nvmlDeviceGetName")
    assert type(error) is HardwareError
    assert error.code == 777


def test_a_call_raises_the_agents_error_from_the_bindings(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetMinorNumber", "RESET_REQUIRED")
    with pytest.raises(HardwareError, match=r"nvmlDeviceGetMinorNumber: .*\(NVML error 16\): drain the GPU") as caught:
        session.calls(pynvml.nvmlDeviceGetMinorNumber, first(session))
    assert isinstance(caught.value.__cause__, pynvml.NVMLError)


def test_what_a_gpu_does_not_have_is_absent_and_not_zero(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetMinorNumber", "NOT_SUPPORTED", times=1)
    assert session.calls.optional(pynvml.nvmlDeviceGetMinorNumber, first(session)) is None
    assert session.calls.optional(pynvml.nvmlDeviceGetMinorNumber, first(session)) == 2


def test_an_optional_answer_that_fails_is_still_an_error(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetMinorNumber", "UNKNOWN")
    with pytest.raises(HardwareError):
        session.calls.optional(pynvml.nvmlDeviceGetMinorNumber, first(session))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"NVIDIA H200", "NVIDIA H200"),
        ("NVIDIA H200", "NVIDIA H200"),
        (b"NVIDIA \xf8", "NVIDIA \N{REPLACEMENT CHARACTER}"),
        (b"", ""),
    ],
)
def test_a_text_is_always_a_str(answer: bytes | str, expected: str) -> None:
    assert text(answer) == expected


class NamelessLibrary:
    """The node's library, whose GPU names are no UTF-8."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def nvmlDeviceGetName(self, _handle: Any, buffer: Any, _size: Any) -> int:
        ctypes.memmove(buffer, b"GPU \xf8\0", 6)
        return 0


def test_a_name_that_is_no_utf8_passes_the_binding_that_would_die_of_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", NamelessLibrary(pynvml.nvmlLib))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    with pytest.raises(UnicodeDecodeError):
        pynvml.nvmlDeviceGetName(first(session))
    assert session.calls.text(pynvml.nvmlDeviceGetName, first(session)) == "GPU \N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(("answer", "expected"), [(0, 0), (7, 7), (None, None), (0xFFFFFFFF, None), (2**64 - 1, None)])
def test_all_ones_are_no_figure(answer: int | None, expected: int | None) -> None:
    assert figure(answer) == expected


def test_field_values_fail_one_by_one(session: Session) -> None:
    recovery, nonsense = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 100000
    good, bad = session.calls.fields(first(session), [(recovery, 0), (nonsense, 0)])
    assert good == 0
    assert isinstance(bad, HardwareError)
    assert f"nvmlDeviceGetFieldValues({nonsense})" in str(bad)


def test_field_values_are_read_in_the_form_that_they_come_in(session: Session) -> None:
    speed = pynvml.NVML_FI_DEV_NVLINK_GET_SPEED
    assert session.calls.fields(first(session), [(speed, 0), (speed, 17)]) == [26562, 26562]


def test_a_call_shows_while_it_is_in_the_library(session: Session, node: SimulatedNode) -> None:
    node.faults.hang("nvmlDeviceGetMinorNumber", seconds=30)
    asking = threading.Thread(target=session.calls, args=(pynvml.nvmlDeviceGetMinorNumber, first(session)))
    asking.start()
    try:
        deadline = time.monotonic() + 5
        while session.calls.busy is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert session.calls.busy is not None
        assert session.calls.busy.call == "nvmlDeviceGetMinorNumber"
        assert 0 <= session.calls.busy.seconds < 5
    finally:
        node.faults.clear()
        asking.join()
    assert session.calls.busy is None


def test_a_failed_call_does_not_show_for_ever(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetMinorNumber", "UNKNOWN")
    session.calls.optional(pynvml.nvmlDeviceGetUUID, first(session))
    with pytest.raises(HardwareError):
        session.calls(pynvml.nvmlDeviceGetMinorNumber, first(session))
    assert session.calls.busy is None


def raising(error: Exception) -> Any:
    raise error


def test_a_failed_query_costs_its_own_attribute() -> None:
    answers = Answers()
    assert answers.ask("memory", lambda: raising(HardwareError("broken", code=999))) is None
    assert answers.ask("minor", lambda: 3) == 3
    assert answers.failed == {"memory": "broken"}
    assert answers.heard


def test_a_query_that_is_not_supported_is_no_failure() -> None:
    answers = Answers()
    assert answers.ask("memory", lambda: raising(NotSupported("none here"))) is None
    assert answers.failed == {}
    assert answers.heard


def test_a_gpu_that_answers_nothing_was_not_heard() -> None:
    answers = Answers()
    answers.ask("memory", lambda: raising(HardwareError("broken")))
    assert not answers.heard


@pytest.mark.parametrize("error", [DeviceLost("gone"), DriverUnavailable("gone")])
def test_the_end_of_the_gpu_or_the_driver_ends_the_questions(error: HardwareError) -> None:
    with pytest.raises(type(error)):
        Answers().ask("memory", lambda: raising(error))


def test_calls_of_two_threads_are_told_apart(node: SimulatedNode) -> None:
    one, other = Calls(), Calls()
    node.faults.hang("nvmlInitWithFlags", seconds=30)
    asking = threading.Thread(target=one, args=(pynvml.nvmlInit,))
    asking.start()
    try:
        while one.busy is None:
            time.sleep(0.01)
        assert other.busy is None
    finally:
        node.faults.clear()
        asking.join()
    one(pynvml.nvmlShutdown)
