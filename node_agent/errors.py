"""All errors of the agent, in one tree. A message says what is wrong, where, and what to do.

NodeAgentError
├── ConfigError               the configuration cannot be used
│   └── LayoutRefused         a GPU cannot be cut as is wanted
├── HardwareError             the driver or a GPU did not answer as it should
│   ├── DriverUnavailable     no driver, no library, or the two do not fit: nothing can be asked
│   │   └── LibraryUnusable   it is the library: it is not there, or is not the driver's
│   ├── NotSupported          this GPU or driver does not have what was asked for: neutral, not a fault
│   ├── DeviceLost            the GPU has fallen off the bus
│   ├── InUse                 something uses the GPU or a part of it, which cannot change meanwhile
│   └── CallTimedOut          the driver did not answer in time
├── SimulationError           the simulated node was asked for something that it does not have
├── AllocationError           devices cannot be given out as asked
│   ├── UnknownDevice         an id that was never offered
│   ├── PoolUnknown           what the node offers to claims is not known yet; it will be
│   ├── DeviceWithdrawn       a device that is out of service
│   ├── DeviceHeld            somebody else holds the hardware
│   ├── ModesDisagree         who shares a GPU wants it set in another way
│   ├── DomainNotReady        a ComputeDomain is not ready on this node yet; it may be soon
│   ├── DomainRefused         a claim to a ComputeDomain that it must not have, or that is not there
│   ├── Overtaken             what was asked for has been undone before its turn came
│   ├── ClaimUnreadable       a ResourceClaim is not there as it was named, or is not understood
│   └── ClaimConfigInvalid    the opaque configuration of a claim or its class cannot be used
├── MpsError                  an MPS daemon does not run or answer as it should
│   └── MpsImpossible         MPS cannot be had here as it is wanted: no program, an older GPU, another user of it
├── StateError                what was given out cannot be read or written down
│   ├── CheckpointDamaged     the file is not what was written
│   └── HoldersUnknown        who holds what is not known yet; it will be
├── CdiError                  CDI specs cannot be made
│   ├── DriverFilesMissing    no driver libraries under the driver root
│   ├── DriverFilesUnknown    the driver's files were not looked at yet; they will be
│   ├── PartitionGone         a partition that a container is to get does not lie on its GPU
│   └── InvalidSpec           a spec does not follow the CDI format
├── KubeletError              the kubelet did not do what was asked
│   └── RegistrationRefused   it answered, and said no
├── LabelsNotWritten          the file of labels cannot be written, or is somebody else's
└── KubeError                 the Kubernetes API cannot be used
    ├── KubeAccessError       where it is, who we are or whether to trust it: files, kubeconfig, certificates
    └── KubeApiError          one request failed; it says which
        ├── NotFound          there is no such object, or no such kind
        ├── Conflict          the object was changed meanwhile, or is another one
        │   └── AlreadyExists  an object of that name is there
        ├── Forbidden         a right is missing, or admission said no
        ├── Invalid           the object breaks a rule of its kind
        ├── Expired           what was to be continued is forgotten: list anew
        ├── TooManyRequests   the server wants to be asked later
        └── Unavailable       no answer, or one that says nothing about the request: network, time, 5xx
"""


class NodeAgentError(Exception):
    """The root: catch this to catch whatever the agent raises knowingly."""


class ConfigError(NodeAgentError):
    """The configuration cannot be used; the message names the path of the key."""


class LayoutRefused(ConfigError):
    """A GPU cannot be cut as is wanted; the message says what does not fit."""


class HardwareError(NodeAgentError):
    """A call of the driver failed. ``call`` is the driver's own function, ``code`` its error number."""

    def __init__(self, message: str, *, call: str | None = None, code: int | None = None) -> None:
        super().__init__(message)
        self.call = call
        self.code = code


class DriverUnavailable(HardwareError):
    """Nothing can be asked: no driver, no library, or the two do not fit together."""


class LibraryUnusable(DriverUnavailable):
    """Nothing can be asked, since the driver's library is not there, lacks what is needed, or is of another version."""


class NotSupported(HardwareError):
    """The GPU or the driver does not have what was asked for. Neutral: never a sign of a fault."""


class DeviceLost(HardwareError):
    """The GPU has fallen off the bus; nothing but a reset or a reboot brings it back."""


class InUse(HardwareError):
    """Something uses the GPU or a part of it, so that it cannot change: wait until it is free, or end that."""


class CallTimedOut(HardwareError):
    """The driver did not answer in time."""


class SimulationError(NodeAgentError):
    """The simulated node was asked for something that it does not have; nothing was changed."""


class AllocationError(NodeAgentError):
    """Devices cannot be given out as asked."""


class UnknownDevice(AllocationError):
    """An id that was never offered."""


class PoolUnknown(AllocationError):
    """What the node offers to claims is not known yet; it passes once the GPUs were looked at."""


class DeviceWithdrawn(AllocationError):
    """A device that is out of service."""


class DeviceHeld(AllocationError):
    """Somebody else holds the hardware; the message names the GPU and the holder."""


class ModesDisagree(AllocationError):
    """Who shares a GPU wants it set in another way than who is there; the message names both and their ways."""


class ClaimUnreadable(AllocationError):
    """A ResourceClaim is not there as it was named, is not allocated, or is not understood."""


class ClaimConfigInvalid(AllocationError):
    """The opaque configuration of a claim or its class cannot be used; the message names the path."""


class DomainNotReady(AllocationError):
    """A ComputeDomain is not ready on this node yet; it passes once the domain's daemons are up."""


class DomainRefused(AllocationError):
    """A claim to a ComputeDomain that it must not have, or that is not there; the message says which."""


class Overtaken(AllocationError):
    """What was asked for has been undone before its turn came: whoever asked is behind the times."""


class MpsError(NodeAgentError):
    """An MPS daemon does not run or answer as it should."""


class MpsImpossible(MpsError):
    """MPS cannot be had here as it is wanted, now or at all; the message says what stands in the way."""


class StateError(NodeAgentError):
    """What was given out cannot be read or written down; nothing was changed."""


class CheckpointDamaged(StateError):
    """The file of grants is not what was written; the message says in what way."""


class HoldersUnknown(StateError):
    """Who holds what is not known yet, since the record is new or was lost; it passes once the holders are told."""


class CdiError(NodeAgentError):
    """CDI specs cannot be made."""


class DriverFilesMissing(CdiError):
    """No driver libraries were found under the driver root."""


class DriverFilesUnknown(CdiError):
    """The driver's files were not looked at yet; it passes once they were."""


class PartitionGone(CdiError):
    """A partition that a container is to get does not lie on its GPU, or not any more; the message names it."""


class InvalidSpec(CdiError):
    """A spec does not follow the CDI format."""


class KubeletError(NodeAgentError):
    """The kubelet did not do what was asked."""


class RegistrationRefused(KubeletError):
    """The kubelet answered the registration with an error."""


class LabelsNotWritten(NodeAgentError):
    """The file of labels cannot be written, or is somebody else's; the message names it."""


class KubeError(NodeAgentError):
    """The Kubernetes API cannot be used."""


class KubeAccessError(KubeError):
    """Where the API server is, who we are, or whether to trust it, cannot be found out."""


class KubeApiError(KubeError):
    """One request failed: ``verb`` as in RBAC, ``path`` as in its URL, and what the server's Status said.

    ``code`` is HTTP's, 0 where there was no answer; ``reason`` is Kubernetes' own word, ``name`` the object that the
    server speaks of, if any. ``causes`` are the fields that were found wrong, each with what is wrong. ``retry_after``
    is how many seconds the server wants to be left alone.
    """

    def __init__(
        self,
        message: str,
        *,
        verb: str = "",
        path: str = "",
        code: int = 0,
        reason: str = "",
        name: str = "",
        causes: tuple[tuple[str, str], ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.verb = verb
        self.path = path
        self.code = code
        self.reason = reason
        self.name = name
        self.causes = causes
        self.retry_after = retry_after


class NotFound(KubeApiError):
    """There is no such object, or the server does not know its kind."""


class Conflict(KubeApiError):
    """The object was changed since it was read, or is not the one that was meant: read it again."""


class AlreadyExists(Conflict):
    """An object of that name is there already."""


class Forbidden(KubeApiError):
    """A right is missing, which the message names, or admission said no."""


class Invalid(KubeApiError):
    """The object breaks a rule of its kind; ``causes`` has the fields."""


class Expired(KubeApiError):
    """The server no longer knows the place from which to go on: list anew."""


class TooManyRequests(KubeApiError):
    """The server wants to be asked later."""


class Unavailable(KubeApiError):
    """No answer, or one that says nothing about the request: network, time, 5xx. It may have been carried out."""
