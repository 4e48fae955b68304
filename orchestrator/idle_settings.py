"""The section ``[idle]`` of the configuration: when an unused host stops, and how."""

from __future__ import annotations

import re
import shlex
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

POWEROFF_WISH = "/run/cornerman/idle-poweroff"
"""What cornerman-poweroff.path waits for (docs/decisions/0035)."""
POWEROFF_COMMAND = f"touch {POWEROFF_WISH}"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


def seconds(value: object) -> object:
    """``"45m"``, or a number of seconds, as seconds; anything else is left to be refused."""
    if not isinstance(value, str):
        return value
    if found := _DURATION.fullmatch(value.strip().lower()):
        return float(found[1]) * _UNITS[found[2]]
    if re.fullmatch(r"\d+(\.\d+)?", value.strip()):
        return float(value)
    raise ValueError(f'{value!r} is no duration: write "45m", "2h", or a number of seconds')


class IdleConfig(BaseModel):
    """When nobody leases for ``after`` seconds, ``command`` is run; None: never."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: Annotated[float | None, BeforeValidator(seconds), Field(ge=10, allow_inf_nan=False)] = None
    command: str = POWEROFF_COMMAND

    @field_validator("command")
    @classmethod
    def _has_words(cls, value: str) -> str:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"it cannot be split into words ({error}): quote it as in a shell") from None
        if not words:
            raise ValueError("it is empty: name a program, or leave it out for powering off")
        return value

    @property
    def words(self) -> tuple[str, ...]:
        """The command's program and arguments, split like a shell's words; no shell runs it."""
        return tuple(shlex.split(self.command))

    @property
    def is_default(self) -> bool:
        """Whether it powers the machine off by the unit that comes with Cornerman."""
        return self.command == POWEROFF_COMMAND
