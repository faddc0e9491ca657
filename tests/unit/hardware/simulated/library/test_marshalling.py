"""The machinery under the calls: reading arguments as the binding passes them, and writing results where they go."""

import ctypes
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char, c_char_p, c_uint, c_uint8, c_ulonglong, create_string_buffer, pointer
from typing import Any

import msgspec
import pytest

from node_agent.hardware.simulated import load_profile
from node_agent.hardware.simulated.driver import Driver
from node_agent.hardware.simulated.gpu import SimulatedGpu
from node_agent.hardware.simulated.library.calls import (
    CALLS,
    Sized,
    Target,
    address,
    call,
    fill,
    invoke,
    number,
    target,
)

SUCCESS, INVALID, NOT_SUPPORTED, SMALL, MISMATCH = 0, 2, 3, 7, 25


class Opaque(ctypes.Structure):
    pass


Handle = POINTER(Opaque)


class Inner(ctypes.Structure):
    _fields_ = (("start", c_uint), ("size", c_uint))


class Outer(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("name", c_char * 8),
        ("raw", c_uint8 * 4),
        ("owner", Handle),
        ("place", Inner),
        ("count", c_ulonglong),
    )


@pytest.fixture
def driver() -> Driver:
    driver = Driver(load_profile("l4-2"))
    driver.initialise()
    return driver


@pytest.fixture(autouse=True)
def only_here() -> Iterator[None]:
    """Functions made up by a test are gone after it."""
    before = dict(CALLS)
    yield
    CALLS.clear()
    CALLS.update(before)


def run(driver: Driver, name: str, *arguments: Any) -> int:
    return invoke(driver, CALLS[name], *arguments)


# Arguments


@pytest.mark.parametrize("argument", [5, c_uint(5), c_ulonglong(5), ctypes.c_int32(5)])
def test_a_number_may_come_in_any_form(argument: Any) -> None:
    assert number(argument) == 5


def test_a_target_is_found_through_any_pointer() -> None:
    value, array = c_uint(7), (c_uint * 2)(1, 2)
    assert target(byref(value)) is value
    assert target(pointer(value)).value == 7
    assert target(array) is array
    assert target(byref(array)) is array
    assert target(None) is None


def test_an_address_is_read_from_a_handle() -> None:
    assert address(ctypes.cast(0x1234, Handle)) == 0x1234
    assert address(Handle()) is None


def test_text_may_come_in_any_form(driver: Driver) -> None:
    seen: list[str] = []

    @call()
    def nvmlTestText(text: str) -> None:
        seen.append(text)

    for argument in (c_char_p(b"GPU-1"), b"GPU-1", "GPU-1"):
        assert run(driver, "nvmlTestText", argument) == SUCCESS
    assert seen == ["GPU-1"] * 3


def test_a_driver_takes_no_argument(driver: Driver) -> None:
    @call()
    def nvmlTestSum(one: int, driver: Driver, other: int) -> int:
        return one + other + len(driver.gpus)

    result = c_uint()
    assert run(driver, "nvmlTestSum", 1, c_uint(10), byref(result)) == SUCCESS
    assert result.value == 13


# Results


def test_all_kinds_of_fields_are_filled() -> None:
    outer = Outer()
    values = {"name": "MIG", "raw": b"\1\2\3\4", "owner": 0x1234, "place": {"start": 4, "size": 2}, "count": 1 << 40}
    fill(outer, values)
    assert (outer.name, bytes(outer.raw), address(outer.owner)) == (b"MIG", b"\1\2\3\4", 0x1234)
    assert (outer.place.start, outer.place.size, outer.count) == (4, 2, 1 << 40)


def test_a_field_that_the_structure_lacks_is_left_out() -> None:
    inner = Inner()
    fill(inner, {"start": 1, "colour": 2})
    assert inner.start == 1


def test_several_results_go_to_several_pointers(driver: Driver) -> None:
    @call()
    def nvmlTestPair() -> tuple[int, int]:
        return 1, 2

    first, second = c_uint(), c_uint()
    assert run(driver, "nvmlTestPair", byref(first), byref(second)) == SUCCESS
    assert (first.value, second.value) == (1, 2)


def test_a_handle_goes_into_a_pointer_and_an_array_of_them(driver: Driver) -> None:
    @call()
    def nvmlTestHandle() -> int:
        return 0x5000

    @call()
    def nvmlTestHandles() -> list[int]:
        return [0x5000, 0x6000]

    handle, handles, count = Handle(), (Handle * 2)(), c_uint(0)
    assert run(driver, "nvmlTestHandle", byref(handle)) == SUCCESS
    assert run(driver, "nvmlTestHandles", handles, byref(count)) == SUCCESS
    assert [address(entry) for entry in (handle, *handles)] == [0x5000, 0x5000, 0x6000]


@pytest.mark.parametrize("result", [None, (1, None)])
def test_a_value_that_is_not_there_is_not_supported(driver: Driver, result: Any) -> None:
    @call()
    def nvmlTestNothing() -> Any:
        return result

    assert run(driver, "nvmlTestNothing", byref(c_uint()), byref(c_uint())) == NOT_SUPPORTED


def test_a_function_without_results_succeeds(driver: Driver) -> None:
    @call()
    def nvmlTestVoid(value: int) -> None:
        assert value == 3

    assert run(driver, "nvmlTestVoid", 3) == SUCCESS


@pytest.mark.parametrize(("size", "code"), [(4, SUCCESS), (3, SMALL), (0, SMALL)])
def test_text_needs_room_for_its_end(driver: Driver, size: int, code: int) -> None:
    @call()
    def nvmlTestName() -> str:
        return "MIG"

    assert run(driver, "nvmlTestName", create_string_buffer(8), c_uint(size)) == code


@pytest.mark.parametrize(
    ("room", "null", "code"), [(0, True, SMALL), (2, False, SMALL), (3, False, SUCCESS), (9, False, SUCCESS)]
)
def test_a_sized_list_goes_by_the_callers_count(driver: Driver, room: int, null: bool, code: int) -> None:
    @call()
    def nvmlTestSized() -> Sized:
        return Sized([5, 6, 7])

    count, array = c_uint(room), (c_ulonglong * 3)()
    assert run(driver, "nvmlTestSized", byref(count), None if null else array) == code
    assert count.value == 3
    assert list(array) == ([5, 6, 7] if code == SUCCESS else [0, 0, 0])


@pytest.mark.parametrize("null", [True, False])
def test_another_list_takes_the_array_to_be_large_enough(driver: Driver, null: bool) -> None:
    @call()
    def nvmlTestList() -> list[int]:
        return [5, 6, 7]

    count, array = c_uint(0), (c_ulonglong * 3)()
    assert run(driver, "nvmlTestList", byref(count), None if null else array) == SUCCESS
    assert count.value == 3
    assert list(array) == ([0, 0, 0] if null else [5, 6, 7])


# Registration


def test_one_function_may_have_several_names(driver: Driver) -> None:
    @call(also=["nvmlTestOne_v2"])
    def nvmlTestOne() -> int:
        return 1

    for name in ("nvmlTestOne", "nvmlTestOne_v2"):
        result = c_uint()
        assert run(driver, name, byref(result)) == SUCCESS
        assert result.value == 1


def test_a_decorated_function_can_still_be_called() -> None:
    @call()
    def nvmlTestTwice(value: int) -> int:
        return 2 * value

    assert nvmlTestTwice(4) == 8


@pytest.mark.parametrize(
    ("version", "code"), [(1 << 24 | 8, SUCCESS), (2 << 24 | 8, MISMATCH), (1 << 24 | 9999, MISMATCH)]
)
def test_a_version_word_is_checked_before_the_function_runs(driver: Driver, version: int, code: int) -> None:
    ran: list[bool] = []

    @call(versions=[1 << 24 | 8, 1 << 24 | 9999])
    def nvmlTestVersion(request: Target) -> None:
        ran.append(True)

    assert run(driver, "nvmlTestVersion", byref(Outer(version=version))) == code
    assert bool(ran) == (code == SUCCESS)


def test_before_init_only_some_functions_run() -> None:
    @call(needs_init=False)
    def nvmlTestEarly() -> int:
        return 1

    @call()
    def nvmlTestLate() -> int:
        return 1

    driver = Driver(load_profile("l4-2"))
    assert run(driver, "nvmlTestEarly", byref(c_uint())) == SUCCESS
    assert run(driver, "nvmlTestLate", byref(c_uint())) == 1


def test_a_board_may_refuse_a_function(driver: Driver) -> None:
    @call()
    def nvmlTestRefused(gpu: SimulatedGpu) -> int:
        return gpu.slot

    handle = ctypes.cast(driver.handle(driver.gpus[1]), Handle)
    result = c_uint()
    assert run(driver, "nvmlTestRefused", handle, byref(result)) == SUCCESS
    assert result.value == 1
    driver.gpus[1].board = msgspec.structs.replace(driver.gpus[1].board, unsupported=("nvmlTestRefused",))
    assert run(driver, "nvmlTestRefused", handle, byref(result)) == NOT_SUPPORTED


def test_a_mistake_in_a_function_is_not_an_nvml_error(driver: Driver) -> None:
    @call()
    def nvmlTestBroken() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(driver, "nvmlTestBroken", byref(c_uint()))
