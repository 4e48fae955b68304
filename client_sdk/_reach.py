"""How the relay of a lease is reached, and in words why it was not."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus, ProxyError
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import Event, State

from client_sdk._proxy import shown
from client_sdk._trust import fault_text
from client_sdk._version import __version__
from client_sdk.wire import MAX_RELAY_MESSAGE_BYTES, SUBPROTOCOL, Method

CONNECT_WITHIN_S, FIRST_CONNECT_WITHIN_S = 5.0, 8.0
PROBE_WITHIN_S = 3.0
_FINAL = frozenset({401, 403, 404, 410, 426})


@dataclass(frozen=True)
class Route:
    """How to reach the relay of a lease. ``server_hostname`` is the name its certificate must bear.

    ``patience_s`` is how long calls wait for a broken line to come back.
    """

    url: str
    token: str = field(repr=False)
    trusting: ssl.SSLContext | None = None
    server_hostname: str | None = None
    proxy: str | None = field(default=None, repr=False)  # may hold a password
    deadlines_s: Mapping[Method, float] = field(default_factory=dict)
    patience_s: float = 180.0

    @property
    def authority(self) -> str:
        """``host:port`` of the relay."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def port(self) -> int:
        """The relay's port."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "wss" else 80)


class Untrusted(Exception):
    """Who answers cannot prove to be the host that the connection string names."""


class Turned(Exception):
    """The relay will not have us, and said why: trying again is of no use."""


class Socket(ClientConnection):
    """A connection that remembers when it last heard anything, and hands messages on without a queue and a task between.

    A message that comes whole is taken out of the data at once; all else is websockets' affair. That goes by methods which websockets
    does not promise to keep; without them its public ones do the same more slowly.
    """

    heard_at = 0.0
    deliver: Callable[[bytes | memoryview], None] | None = None
    broke: Exception | None = None  # what ``deliver`` raised
    _head: bytes | None = b""  # of the answer to the handshake; None when it is over, and frames come
    _rest = b""  # the beginning of a frame's head
    _owed = 0  # what is still to come of a frame whose beginning websockets has

    def data_received(self, data: bytes) -> None:
        """Note the time, since a part of a message counts too, and take out the messages."""
        self.heard_at = time.monotonic()
        if self._head is not None:
            data = self._after_head(data)
        data, self._rest = self._rest + data, b""
        at = min(self._owed, len(data))
        if at:
            super().data_received(data[:at])
            self._owed -= at
        while at < len(data):
            head, size = _sizes(data, at)
            if size is None:
                self._rest = data[at:]
                return
            end = at + size
            if end <= len(data) and data[at] == _WHOLE_BINARY and self.deliver is not None:
                self._hand_over(memoryview(data)[at + head : end])
            else:
                super().data_received(data[at:end])
                self._owed = max(0, end - len(data))
            at = end

    def process_event(self, event: Event) -> None:
        """Hand a message that came in pieces to ``deliver``; everything else takes the usual way."""
        if self.deliver is not None and isinstance(event, Frame) and event.opcode is Opcode.BINARY and event.fin:
            self._hand_over(bytes(event.data))
        else:
            super().process_event(event)

    def _hand_over(self, message: bytes | memoryview) -> None:
        if self.deliver is not None and self.broke is None:
            try:
                self.deliver(message)
            except Exception as fault:
                self.broke = fault
                self.transport.abort()

    def _after_head(self, data: bytes) -> bytes:
        """Let websockets have the answer to the handshake: what comes behind it, once it is whole and has opened the connection."""
        before = self._head or b""
        whole = before + data
        end = whole.find(_END_OF_HEAD)
        cut = len(whole) if end < 0 else end + len(_END_OF_HEAD)
        super().data_received(whole[len(before) : cut])
        self._head = whole if end < 0 else None
        if end >= 0 and self.state is not State.OPEN:
            self._owed = sys.maxsize  # it is a refusal, and its text follows
        return whole[cut:]

    async def send_soon(self, data: bytes) -> None:
        """Send a message."""
        if not _CAN_SEND_NOW:
            await self.send(data)
        elif self.state is State.OPEN:
            self.protocol.send_binary(data)
            self.send_data()


_END_OF_HEAD, _WHOLE_BINARY = b"\r\n\r\n", 0x82


def _sizes(data: bytes, at: int) -> tuple[int, int | None]:
    """How long a frame's head is, and the frame with it; None when too little of it is there (RFC 6455, 5.2)."""
    if len(data) - at < 2:
        return 2, None
    size = data[at + 1] & 0x7F
    more = 0 if size < 126 else 2 if size == 126 else 8
    head = 2 + more + (4 if data[at + 1] & 0x80 else 0)
    if len(data) - at < 2 + more:
        return head, None
    return head, head + (int.from_bytes(data[at + 2 : at + 2 + more], "big") if more else size)


_CAN_SEND_NOW = hasattr(ClientConnection, "send_data")


def dial(route: Route, *, within_s: float) -> connect:
    """A connection to the relay, as an asynchronous context manager."""
    tls: dict[str, Any] = {}
    if route.trusting is not None:
        tls = {"ssl": route.trusting, "server_hostname": route.server_hostname}
    return connect(
        route.url,
        subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
        additional_headers={"Authorization": f"Bearer {route.token}"},
        user_agent_header=f"cornerman/{__version__}",
        compression=None,
        proxy=route.proxy,
        open_timeout=within_s,
        ping_interval=None,  # Line looks after that
        close_timeout=1.0,
        max_size=MAX_RELAY_MESSAGE_BYTES,
        max_queue=(64, 16),
        create_connection=Socket,
        **tls,
    )


async def explain(route: Route, fault: BaseException, *, first: bool) -> str:
    """Why there is no connection, in one sentence; raises Untrusted or Turned when there never will be."""
    where = route.authority
    match fault:
        case ConnectionClosed():
            return f"The line to the relay at {where} broke ({fault})."
        case InvalidStatus():
            return _refusal(route, fault.response, first=first)
        case ssl.SSLCertVerificationError():
            text = (
                f"The relay at {where} cannot prove to be the host that the connection string names "
                f"({fault_text(fault)}); get a new string on the host, or look who answers there."
            )
            if first:
                raise Untrusted(text)
            return text
        case ssl.SSLError():
            return f"What answers at {where} does not speak TLS, so it is not the relay; check port and proxies on the way."
        case InvalidMessage():
            return f"What answers at {where} does not speak HTTP, so it is not the relay; check port and proxies on the way."
        case ProxyError():
            return f"The proxy did not connect to the relay at {where} ({fault_text(fault)})."
        case asyncio.TimeoutError() | TimeoutError():
            return await _silence(route)
        case InvalidHandshake():
            return f"What answers at {where} is not Cornerman's relay ({fault_text(fault)}); check port and proxies on the way."
        case OSError() if route.proxy is not None:
            return (
                f"The relay at {where} was not reached through the environment's proxy {shown(route.proxy)} "
                f"({fault_text(fault)}); is that the right one, and does it let you through to TCP port {route.port}?"
            )
        case OSError():
            return (
                f"The relay at {where} was not reached ({fault_text(fault)}); is it running, and TCP port {route.port} "
                "open to you?"
            )
    return f"The line to the relay at {where} broke ({fault_text(fault)})."


def _refusal(route: Route, response: Response, *, first: bool) -> str:
    status, kind = response.status_code, response.headers.get("Content-Type", "")
    words = (response.body or b"").decode("utf-8", "replace").strip()
    if words and kind.startswith("text/plain") and len(words) < 1000:
        if status in _FINAL:
            raise Turned(words)
        return words
    text = f"What answers at {route.authority} is not Cornerman's relay (HTTP {status}); check port and proxies on the way."
    if first and status in _FINAL:
        raise Turned(text)
    return text


async def _silence(route: Route) -> str:
    """Tell a port that is blocked from a peer that accepts and says nothing."""
    where = route.authority
    if route.proxy is None:
        try:
            host = urlsplit(route.url).hostname
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, route.port), PROBE_WITHIN_S)
        except (OSError, asyncio.TimeoutError):
            return (
                f"The relay at {where} was not reached (no answer); open TCP port {route.port} to this machine in the "
                "host's firewall or security group."
            )
        with contextlib.suppress(OSError):
            writer.close()
    return f"{where} accepts a connection but does not answer; is the relay running there, or does a proxy hold it up?"
