"""The machine around: space and rights for the agent's state, the clock, and the kernel's limits."""

import ctypes
import os
import resource
from collections.abc import Callable, Iterator

from node_agent.doctor.finding import Finding, failed, ok, skipped, warning
from node_agent.doctor.place import Place, text_of

# What the agent keeps is some hundred KiB; below the lesser amount a write may fail at any moment.
ENOUGH_BYTES, LEAST_BYTES = 64 << 20, 1 << 20
INOTIFY = "sys/fs/inotify/max_user_instances"
ENOUGH_INSTANCES = 128
ENOUGH_FILES = 1024
# What adjtimex answers where nobody keeps the clock right.
_UNSYNCHRONISED = 5


def state(place: Place) -> Iterator[Finding]:
    """Whether what was given out can be written down."""
    path = place.settings.paths.state_dir
    there = next(one for one in (path, *path.parents) if one.exists())
    if not os.access(there, os.W_OK):
        fix = "run the agent as root, and in a container mount a folder of the host there"
        yield failed("machine.state", "the folder of the agent's state cannot be written", path, fix=fix)
        return
    found = os.statvfs(there)
    free = found.f_bavail * found.f_frsize
    if free < ENOUGH_BYTES:
        say = failed if free < LEAST_BYTES else warning
        fix = "make room there: without it no claim can be prepared"
        yield say("machine.state", f"only {free >> 10} KiB are free for the agent's state", path, fix=fix)
    elif found.f_files and not found.f_favail:
        fix = "remove files there: no inode is left"
        yield failed("machine.state", "no file can be made for the agent's state", path, fix=fix)
    else:
        yield ok("machine.state", f"{free >> 20} MiB are free for the agent's state", path)


def clock(adjtimex: Callable[[], int] | None = None) -> Iterator[Finding]:
    """Whether somebody keeps the clock right: tokens and certificates are refused where it is wrong."""
    if (adjtimex or _adjtimex)() == _UNSYNCHRONISED:
        fix = "start chronyd or systemd-timesyncd on the host"
        yield warning("machine.clock", "nobody keeps the clock of this machine right", fix=fix)
    else:
        yield ok("machine.clock", "the clock is kept right")


def _adjtimex() -> int:
    # With modes 0, as in a zeroed buffer, it only tells; the kernel's struct has at most 208 bytes.
    return int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(256)))


def inotify(place: Place) -> Iterator[Finding]:
    """Whether kubelet and runtime can watch files: the agent itself needs none of this."""
    path = place.proc / INOTIFY
    text = text_of(path)
    if text is None or not text.isdigit():
        yield skipped("machine.inotify", "the kernel does not tell its limit", path)
    elif int(text) < ENOUGH_INSTANCES:
        fix = "sysctl -w fs.inotify.max_user_instances=8192, and make it last in /etc/sysctl.d"
        what = f"only {text} inotify instances a user: kubelet and runtime may miss new CDI specs and plugins"
        yield warning("machine.inotify", what, path, fix=fix)
    else:
        yield ok("machine.inotify", f"{text} inotify instances a user", path)


def files() -> Iterator[Finding]:
    """How many files and connections this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < ENOUGH_FILES:
        fix = "raise the limit (LimitNOFILE of the runtime's service)"
        yield warning("machine.files", f"a process may open only {soft} files", fix=fix)
    else:
        yield ok("machine.files", f"a process may open {soft if soft >= 0 else 'any number of'} files")
