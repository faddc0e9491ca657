from pathlib import Path

import pytest

from node_agent.cdi.hooks import (
    CREATE_SYMLINKS,
    DISABLE_DEVICE_NODE_MODIFICATION,
    ENABLE_CUDA_COMPAT,
    HOOKS,
    PROGRAMS,
    UPDATE_LDCACHE,
    HookProgram,
    find_hook_program,
    link_arguments,
)
from node_agent.cdi.roots import DriverRoots
from node_agent.errors import CdiError
from tests.unit.cdi.installation import Installation

PATH = "/usr/bin/nvidia-cdi-hook"


@pytest.fixture
def host(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def roots(host: Installation, on_host: str = "/") -> DriverRoots:
    return DriverRoots(driver=host.root, host_driver=Path(on_host))


def test_a_host_without_the_toolkit_has_no_program(host: Installation) -> None:
    assert find_hook_program(roots(host)) is None


@pytest.mark.parametrize("place", PROGRAMS)
def test_the_program_is_found_where_packages_and_the_operator_put_it(host: Installation, place: str) -> None:
    host.hook(HOOKS, place)
    assert find_hook_program(roots(host)) == HookProgram(path=place, offers=frozenset(HOOKS))


def test_the_newer_program_goes_before_the_older(host: Installation) -> None:
    host.hook(HOOKS, "/usr/bin/nvidia-ctk")
    host.hook(HOOKS, PATH)
    found = find_hook_program(roots(host))
    assert found is not None
    assert found.path == PATH


def test_a_hook_that_an_old_program_does_not_know_is_not_used(host: Installation) -> None:
    host.hook([CREATE_SYMLINKS, UPDATE_LDCACHE])
    found = find_hook_program(roots(host))
    assert found is not None
    assert found.offers == {CREATE_SYMLINKS, UPDATE_LDCACHE}


def test_the_hooks_of_a_wrapped_program_are_looked_up_behind_the_wrapper(host: Installation) -> None:
    place = "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
    host.file(place, b"#! /bin/sh\nexec nvidia-cdi-hook.real\n", mode=0o755)
    host.hook([CREATE_SYMLINKS, ENABLE_CUDA_COMPAT], f"{place}.real")
    assert find_hook_program(roots(host)) == HookProgram(
        path=place, offers=frozenset({CREATE_SYMLINKS, ENABLE_CUDA_COMPAT})
    )


def test_an_empty_program_knows_nothing(host: Installation) -> None:
    host.hook([])
    assert find_hook_program(roots(host)) == HookProgram(path=PATH, offers=frozenset())


def test_a_hook_that_is_disabled_is_not_used(host: Installation) -> None:
    host.hook(HOOKS)
    found = find_hook_program(roots(host), disabled=[ENABLE_CUDA_COMPAT])
    assert found is not None
    assert found.offers == set(HOOKS) - {ENABLE_CUDA_COMPAT}


def test_a_program_in_a_driver_container_is_named_by_the_hosts_path(host: Installation) -> None:
    host.hook(HOOKS)
    found = find_hook_program(roots(host, "/run/nvidia/driver"))
    assert found is not None
    assert found.path == f"/run/nvidia/driver{PATH}"


def test_a_given_path_is_the_hosts(host: Installation) -> None:
    host.hook([CREATE_SYMLINKS], "/opt/bin/nvidia-cdi-hook")
    given = "/run/nvidia/driver/opt/bin/nvidia-cdi-hook"
    found = find_hook_program(roots(host, "/run/nvidia/driver"), given)
    assert found == HookProgram(path=given, offers=frozenset({CREATE_SYMLINKS}))


def test_a_given_program_that_the_agent_cannot_see_is_trusted(host: Installation) -> None:
    found = find_hook_program(roots(host), "/opt/bin/nvidia-cdi-hook", disabled=[UPDATE_LDCACHE])
    assert found == HookProgram(path="/opt/bin/nvidia-cdi-hook", offers=frozenset(HOOKS) - {UPDATE_LDCACHE})


def test_a_program_that_cannot_be_read_is_an_error(host: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    host.hook(HOOKS)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(CdiError, match="Permission denied"):
        find_hook_program(roots(host))


def test_hooks_run_in_their_order_whatever_the_order_of_the_arguments() -> None:
    arguments: dict[str, list[str]] = {name: [] for name in reversed(HOOKS)}
    hooks = list(HookProgram(path=PATH).hooks(arguments))
    assert [hook.args[1] for hook in hooks] == list(HOOKS)
    assert HOOKS.index(ENABLE_CUDA_COMPAT) < HOOKS.index(UPDATE_LDCACHE)


def test_a_hook_runs_in_the_container_before_it_starts() -> None:
    (hook,) = HookProgram(path=PATH).hooks({UPDATE_LDCACHE: ["--folder", "/usr/lib64"]})
    assert (hook.hook_name, hook.path) == ("createContainer", PATH)
    assert hook.args == ("nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64")
    assert hook.env == ("NVIDIA_CTK_DEBUG=false",)


def test_the_older_program_has_its_hooks_under_a_command() -> None:
    (hook,) = HookProgram(path="/usr/bin/nvidia-ctk").hooks({DISABLE_DEVICE_NODE_MODIFICATION: []})
    assert hook.args == ("nvidia-ctk", "hook", "disable-device-node-modification")


def test_only_what_is_offered_and_asked_for_becomes_a_hook() -> None:
    program = HookProgram(path=PATH, offers=frozenset({CREATE_SYMLINKS, UPDATE_LDCACHE}))
    assert [hook.args[1] for hook in program.hooks({UPDATE_LDCACHE: [], ENABLE_CUDA_COMPAT: []})] == [UPDATE_LDCACHE]


@pytest.mark.parametrize(
    ("offers", "provides"),
    [(HOOKS, True), ((CREATE_SYMLINKS, UPDATE_LDCACHE), True), ((CREATE_SYMLINKS,), False), ((), False)],
)
def test_libraries_take_links_and_a_cache(offers: tuple[str, ...], provides: bool) -> None:
    assert HookProgram(path=PATH, offers=frozenset(offers)).provides_libraries is provides


def test_each_link_is_an_argument_of_its_own() -> None:
    assert link_arguments([("/a/libx.so", "libx.so.1"), ("/a/liby.so", "liby.so.1")]) == [
        "--link",
        "libx.so.1::/a/libx.so",
        "--link",
        "liby.so.1::/a/liby.so",
    ]
