"""How the commands of a host end."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How ``cornerman serve`` and ``cornerman relay`` end, as sysexits.h has it."""

    STOPPED = 0  # asked to, by a signal
    PORT_TAKEN = 69
    FAULT = 70  # a fault of ours: whoever supervises it starts it again
    STATE = 74  # the state folder cannot be used
    ALREADY_RUNNING = 75
    CONFIG = 78  # starting again would change nothing
