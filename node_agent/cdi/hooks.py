"""The container toolkit's hook program, used where the host has it. Specs are complete without it.

Hooks do in the container what mounts cannot: they make links instead of mounting a file once per name, and run ldconfig
there, so that images which search other folders find the driver as well. A program that does not know a hook fails the
container that asks for it; so only the hooks are used whose names are in the program's file.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from msgspec import Struct

from node_agent.cdi.edits import CREATE_CONTAINER, Hook
from node_agent.cdi.roots import DriverRoots
from node_agent.errors import CdiError

CREATE_SYMLINKS = "create-symlinks"
ENABLE_CUDA_COMPAT = "enable-cuda-compat"
UPDATE_LDCACHE = "update-ldcache"
DISABLE_DEVICE_NODE_MODIFICATION = "disable-device-node-modification"
UPDATE_APPLICATION_PROFILE = "update-application-profile"

# In the order in which they must run: the cache is made after all that it lists.
HOOKS = (
    CREATE_SYMLINKS,
    ENABLE_CUDA_COMPAT,
    UPDATE_LDCACHE,
    DISABLE_DEVICE_NODE_MODIFICATION,
    UPDATE_APPLICATION_PROFILE,
)

# Where packages and the GPU Operator install the program; the older of the two has the hooks under a command "hook".
PROGRAMS = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
)

_ENVIRONMENT = ("NVIDIA_CTK_DEBUG=false",)


class HookProgram(Struct, frozen=True, kw_only=True):
    """The program by its path on the host, and the names of the hooks that may be used."""

    path: str
    offers: frozenset[str] = frozenset(HOOKS)

    @property
    def provides_libraries(self) -> bool:
        """True where hooks can give a container the libraries' names and a loader's cache; else mounts have to."""
        return {CREATE_SYMLINKS, UPDATE_LDCACHE} <= self.offers

    def hooks(self, arguments: Mapping[str, Iterable[str]]) -> Iterator[Hook]:
        """The hooks among the given ones that may be used, with their arguments, in the order to run them."""
        name = PurePosixPath(self.path).name
        front = (name, "hook") if name == "nvidia-ctk" else (name,)
        for hook in HOOKS:
            if hook in arguments and hook in self.offers:
                args = (*front, hook, *arguments[hook])
                yield Hook(hook_name=CREATE_CONTAINER, path=self.path, args=args, env=_ENVIRONMENT)


def find_hook_program(roots: DriverRoots, path: str | None = None, disabled: Iterable[str] = ()) -> HookProgram | None:
    """The program that the host has, None where it has none; ``path`` says where on the host it is, if not as usual.

    A program at a given path that the agent cannot see is trusted to know every hook but the ``disabled`` ones. Raises
    CdiError where it can be seen and not read.
    """
    wanted = frozenset(HOOKS) - frozenset(disabled)
    places = PROGRAMS if path is None else (str(roots.place_on_host(path)),)
    for place in map(PurePosixPath, places):
        seen = roots.driver_file(roots.resolve(place))
        if seen.is_file():
            return HookProgram(path=path or roots.driver_file_on_host(place), offers=wanted & _known(seen))
    return None if path is None else HookProgram(path=path, offers=wanted)


def link_arguments(links: Iterable[tuple[str, str]]) -> list[str]:
    """The arguments that make links of (path, target) pairs."""
    return [word for path, target in links for word in ("--link", f"{target}::{path}")]


def _known(program: Path) -> frozenset[str]:
    """The hooks whose names stand in the program's file; the GPU Operator puts a script in front of it."""
    behind = program.with_name(f"{program.name}.real")
    try:
        content = (behind if behind.is_file() else program).read_bytes()
    except OSError as error:
        raise CdiError(f"the hook program {program} cannot be read: {error.strerror or error}") from error
    return frozenset(hook for hook in HOOKS if hook.encode() in content)
