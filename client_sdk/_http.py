"""One host's API over HTTP: every call has a deadline, and every failure becomes one of our errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import requests
from pydantic import BaseModel, ValidationError
from requests.exceptions import RequestException, SSLError
from urllib3 import Retry
from urllib3.exceptions import ProtocolError
from urllib3.response import BaseHTTPResponse

from client_sdk import _proxy, _trust
from client_sdk._errors import ConnectionFault, UntrustedHost, VersionMismatch
from client_sdk._problems import to_error
from client_sdk._url import Target
from client_sdk._version import API_VERSION, __version__
from client_sdk.models import IDEMPOTENCY_HEADER, VERSION_HEADER

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self
    from urllib3.connectionpool import ConnectionPool

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
MAX_RETRY_AFTER_S = 30.0
_SELF_REPEATABLE = frozenset({"GET", "DELETE"})

A = TypeVar("A", bound=BaseModel)


class _PatientRetry(Retry):
    """Tries again a few times, waits as long as the host asks for, but never for ever."""

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: ConnectionPool | None = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        if error is not None and _trust.broke(error):  # urllib3 takes it for a wrong certificate
            error = ProtocolError(_trust.innermost(error))
        return super().increment(method, url, response, error, _pool, _stacktrace)

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        asked = super().get_retry_after(response)
        return None if asked is None else min(asked, MAX_RETRY_AFTER_S)


def _retries() -> Retry:
    return _PatientRetry(
        total=4,
        other=0,  # a certificate that is wrong stays wrong
        backoff_factor=0.3,
        status_forcelist=(429, 502, 503, 504),
        allowed_methods=None,  # Session sends here only what may be repeated
        raise_on_status=False,
    )


class Session:
    """Calls the API of ``target``; ``ca_pem`` saves the fetching of a CA that was already checked.

    A forked child gets connections of its own: two processes on one TLS stream would garble it.
    """

    def __init__(self, target: Target, *, ca_pem: str | None = None) -> None:
        self.target = target
        self._ca_pem = ca_pem
        self._owner = 0
        self._patient: requests.Session
        self._plain: requests.Session

    def __repr__(self) -> str:
        return f"Session({self.target.authority})"

    @property
    def _proxy(self) -> str | None:
        return _proxy.of_environment(self.target.base_url)

    @property
    def ca_pem(self) -> str | None:
        """The CA that is trusted, fetched if need be; None for the system's roots."""
        if self.target.ca_sha256 is not None and self._ca_pem is None:
            self._ca_pem = _trust.fetch_ca(self.target, proxy=self._proxy)
        return self._ca_pem

    def call(
        self,
        method: str,
        path: str,
        *,
        answer: type[A],
        body: BaseModel | None = None,
        key: str | None = None,
        params: Mapping[str, str] | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
        patient: bool = True,
    ) -> A:
        """Send one request and read its answer; ``patient`` repeats what may be repeated (a POST needs a key)."""
        response = self._send(method, path, body, key, params, read_timeout_s, patient)
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as fault:
            raise ConnectionFault(
                f"{self.target.authority} gave an answer that this SDK ({__version__}) cannot read; "
                "upgrade the SDK and the daemon to the same version."
            ) from fault

    def command(self, method: str, path: str, *, read_timeout_s: float = READ_TIMEOUT_S, patient: bool = True) -> None:
        """Send one request whose answer has no content."""
        self._send(method, path, None, None, None, read_timeout_s, patient)

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        if self._owner == os.getpid():
            self._owner = 0
            self._patient.close()
            self._plain.close()

    def _send(
        self,
        method: str,
        path: str,
        body: BaseModel | None,
        key: str | None,
        params: Mapping[str, str] | None,
        read_timeout_s: float,
        patient: bool,
    ) -> requests.Response:
        repeat = patient and (method in _SELF_REPEATABLE or key is not None)
        headers = {} if key is None else {IDEMPOTENCY_HEADER: key}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = body.model_dump_json(exclude_unset=True).encode()
        try:
            response = self._session(repeat).request(
                method,
                self.target.base_url + path,
                params=params,
                data=data,
                headers=headers,
                timeout=(min(CONNECT_TIMEOUT_S, read_timeout_s), read_timeout_s),
                allow_redirects=False,
            )
        except RequestException as fault:
            fault.request = None  # it holds the token
            raise self._fault(fault) from fault
        self._check(response)
        return response

    def _fault(self, fault: RequestException) -> UntrustedHost | ConnectionFault:
        if not isinstance(fault, SSLError) or _trust.broke(fault):
            return _trust.not_reached(self.target, fault, self._proxy)
        text = _trust.fault_text(fault)
        if _trust.untrusted(fault):
            return UntrustedHost(
                f"{self.target.authority} cannot prove to be the host that the connection string names ({text}); "
                "get a new string on the host, or look who answers there."
            )
        return ConnectionFault(
            f"What answers at {self.target.authority} does not speak TLS as a Cornerman daemon does ({text}); "
            "check host and port in the connection string, and proxies on the way."
        )

    def _check(self, response: requests.Response) -> None:
        spoken = response.headers.get(VERSION_HEADER)
        if spoken is None:
            raise ConnectionFault(
                f"What answers at {self.target.authority} is not a Cornerman daemon (HTTP {response.status_code}); "
                "check host and port in the connection string, and proxies on the way."
            )
        if spoken != str(API_VERSION):
            older = spoken.isdecimal() and int(spoken) < API_VERSION
            cure = f"upgrade Cornerman on {self.target.host}" if older else "upgrade here: pip install -U cornerman"
            raise VersionMismatch(
                f"The daemon at {self.target.authority} speaks version {spoken[:16]} of the API and this SDK "
                f"version {API_VERSION}; {cure}."
            )
        if not 200 <= response.status_code < 300:
            raise to_error(response)

    def _session(self, repeat: bool) -> requests.Session:
        if self._owner != os.getpid():
            trusting = _trust.context(self.ca_pem) if self.target.tls else None
            self._patient = self._open(_retries(), trusting)
            self._plain = self._open(Retry(0, read=False), trusting)
            self._owner = os.getpid()
        return self._patient if repeat else self._plain

    def _open(self, retries: Retry, trusting: Any) -> requests.Session:
        session = requests.Session()
        session.trust_env = False  # else REQUESTS_CA_BUNDLE and .netrc would have a say
        if (proxy := self._proxy) is not None:
            session.proxies["https" if self.target.tls else "http"] = proxy
        session.headers["Authorization"] = f"Bearer {self.target.token.get_secret_value()}"
        session.headers[VERSION_HEADER] = str(API_VERSION)
        session.headers["User-Agent"] = f"cornerman-sdk/{__version__}"
        name = _trust.INTERNAL_NAME if self.target.ca_sha256 is not None else None
        adapter = _trust.Adapter(trusting, server_hostname=name, retries=retries)
        for scheme in ("https://", "http://"):
            session.mount(scheme, adapter)
        return session
