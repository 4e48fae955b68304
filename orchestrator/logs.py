"""Structured logs: JSON lines for the journal, readable lines on a terminal, and no secret in either."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
HIDDEN = "(hidden)"
_SECRET_NAMES = re.compile(
    r"token(?!_id)|secret|password|authorization|cookie|connection_string|credential", re.IGNORECASE
)
_SECRET_TEXTS = (
    re.compile(r"(?<=://)[^\s/@:]+(?::[^\s/@]*)?(?=@)"),  # the token of a connection string
    re.compile(r"(?i)(?<=bearer )[^\s\"',]+"),
)
# Libraries that tell every request at info.
_CHATTY = ("urllib3", "docker", "granian.access", "werkzeug")


def configure(level: str = "info", *, stream: TextIO | None = None) -> None:
    """Send structlog's and the standard library's records of this process to ``stream`` (standard error by default)."""
    stream = sys.stderr if stream is None else stream
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
    ]
    structlog.configure(
        processors=[
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.StackInfoRenderer(),
                *_last(stream),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _last(stream: TextIO) -> list[Any]:
    """How a record becomes a line; a fault's traceback is text by then, so that secrets are found in it as well."""
    plain = [structlog.processors.format_exc_info, hide_secrets]
    if stream.isatty():
        return [*plain, structlog.dev.ConsoleRenderer(timestamp_key="at", pad_event_to=0, colors=True)]
    return [*plain, structlog.processors.JSONRenderer(default=str)]


def hide_secrets(_logger: object, _method: str, record: structlog.typing.EventDict) -> Mapping[str, Any]:
    """A structlog processor that blots out what is named like a secret, and what looks like one inside any text."""
    return {name: HIDDEN if _SECRET_NAMES.search(name) else _without_secrets(value) for name, value in record.items()}


def _without_secrets(value: Any) -> Any:
    match value:
        case str():
            for pattern in _SECRET_TEXTS:
                value = pattern.sub(HIDDEN, value)
            return value
        case Mapping():
            return hide_secrets(None, "", dict(value))
        case list() | tuple():
            return [_without_secrets(item) for item in value]
        case None | bool() | int() | float():
            return value
        case _:
            return _without_secrets(str(value))
