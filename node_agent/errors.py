"""All errors of the agent, in one tree. A message says what is wrong, where, and what to do.

NodeAgentError
├── ConfigError               the configuration cannot be used
├── HardwareError             the driver or a GPU did not answer as it should
│   ├── DriverUnavailable     no driver, no library, or the two do not fit: nothing can be asked
│   ├── NotSupported          this GPU or driver does not have what was asked for: neutral, not a fault
│   ├── DeviceLost            the GPU has fallen off the bus
│   └── CallTimedOut          the driver did not answer in time
├── SimulationError           the simulated node was asked for something that it does not have
├── AllocationError           devices cannot be given out as asked
│   ├── UnknownDevice         an id that was never offered
│   ├── DeviceWithdrawn       a device that is out of service
│   ├── DeviceHeld            somebody else holds the hardware
│   ├── ClaimUnreadable       a ResourceClaim is not there as it was named, or is not understood
│   └── ClaimConfigInvalid    the opaque configuration of a claim or its class cannot be used
├── CdiError                  CDI specs cannot be made
│   ├── DriverFilesMissing    no driver libraries under the driver root
│   └── InvalidSpec           a spec does not follow the CDI format
└── KubeletError              the kubelet did not do what was asked
    └── RegistrationRefused   it answered, and said no
"""


class NodeAgentError(Exception):
    """The root: catch this to catch whatever the agent raises knowingly."""


class ConfigError(NodeAgentError):
    """The configuration cannot be used; the message names the path of the key."""


class HardwareError(NodeAgentError):
    """A call of the driver failed. ``call`` is the driver's own function, ``code`` its error number."""

    def __init__(self, message: str, *, call: str | None = None, code: int | None = None) -> None:
        super().__init__(message)
        self.call = call
        self.code = code


class DriverUnavailable(HardwareError):
    """Nothing can be asked: no driver, no library, or the two do not fit together."""


class NotSupported(HardwareError):
    """The GPU or the driver does not have what was asked for. Neutral: never a sign of a fault."""


class DeviceLost(HardwareError):
    """The GPU has fallen off the bus; nothing but a reset or a reboot brings it back."""


class CallTimedOut(HardwareError):
    """The driver did not answer in time."""


class SimulationError(NodeAgentError):
    """The simulated node was asked for something that it does not have; nothing was changed."""


class AllocationError(NodeAgentError):
    """Devices cannot be given out as asked."""


class UnknownDevice(AllocationError):
    """An id that was never offered."""


class DeviceWithdrawn(AllocationError):
    """A device that is out of service."""


class DeviceHeld(AllocationError):
    """Somebody else holds the hardware; the message names the GPU and the holder."""


class ClaimUnreadable(AllocationError):
    """A ResourceClaim is not there as it was named, is not allocated, or is not understood."""


class ClaimConfigInvalid(AllocationError):
    """The opaque configuration of a claim or its class cannot be used; the message names the path."""


class CdiError(NodeAgentError):
    """CDI specs cannot be made."""


class DriverFilesMissing(CdiError):
    """No driver libraries were found under the driver root."""


class InvalidSpec(CdiError):
    """A spec does not follow the CDI format."""


class KubeletError(NodeAgentError):
    """The kubelet did not do what was asked."""


class RegistrationRefused(KubeletError):
    """The kubelet answered the registration with an error."""
