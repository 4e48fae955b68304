"""What an EC2 instance sees of AWS at its first boot, played on 127.0.0.1: metadata, the stack's signal, and moto's services."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

METADATA = "http://169.254.169.254"


@dataclass
class Cloud:
    """``address`` of the server; ``signals`` are what the instance told CloudFormation."""

    address: str
    signals: list[dict[str, str]] = field(default_factory=list)


class _Handler(http.server.BaseHTTPRequestHandler):
    cloud: ClassVar[Cloud]
    files: ClassVar[Path]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/ready":
            self.cloud.signals.append(json.loads(body))
        self._answer(b"token")

    def do_GET(self) -> None:
        if self.path == "/latest/meta-data/public-ipv4":
            self._answer(b"127.0.0.1" if self.headers["X-aws-ec2-metadata-token"] == "token" else b"no token", 200)
        elif (self.files / self.path.lstrip("/")).is_file():
            self._answer((self.files / self.path.lstrip("/")).read_bytes())
        else:
            self._answer(b"", 404)

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def cloud(files: Path) -> Iterator[Cloud]:
    """A server with the metadata, the signal ``/ready``, and the files in ``files``."""
    handler = type("Handler", (_Handler,), {"files": files})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        made = Cloud(f"http://127.0.0.1:{server.server_address[1]}")
        handler.cloud = made  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def user_data(template: Mapping[str, Any], values: Mapping[str, str], *, cloud: Cloud, init_options: str) -> str:
    """The script as EC2 hands it to an instance, with ``values`` in it, that looks for its metadata at ``cloud``."""
    text: str = template["Resources"]["Instance"]["Properties"]["UserData"]["Fn::Base64"]["Fn::Sub"]
    known = {name: str(parameter.get("Default", "")) for name, parameter in template["Parameters"].items()}
    known |= {"Ready": f"{cloud.address}/ready", **values}
    text = re.sub(r"\$\{([A-Za-z:]+)\}", lambda found: known[found[1]], text).replace("${!", "${")
    assert METADATA in text
    return text.replace(METADATA, cloud.address).replace(" --public-host ", f" {init_options} --public-host ")
