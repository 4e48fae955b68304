"""The page's own files, read once; their address has a hash of them all, so that browsers may keep them for good."""

from __future__ import annotations

import hashlib
from importlib import resources

from flask import Response

from orchestrator.api.problems import NoSuchPath

_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PUBLIC = frozenset({"style.css", "mark.svg"})
"""What the login page needs; everything else is for who is logged in."""
FOREVER = "private, max-age=31536000, immutable"


class Assets:
    """Files by name, and the version that they are together."""

    def __init__(self) -> None:
        folder = resources.files("orchestrator.dashboard") / "static"
        self._files = {
            file.name: file.read_bytes()
            for file in sorted(folder.iterdir(), key=lambda one: one.name)
            if file.name.endswith(tuple(_KINDS))
        }
        digest = hashlib.sha256()
        for name, content in self._files.items():
            digest.update(f"{name} {len(content)}\n".encode() + content)
        self.version = digest.hexdigest()[:12]

    @property
    def names(self) -> tuple[str, ...]:
        """All there are."""
        return tuple(self._files)

    def answer(self, name: str, version: str) -> Response:
        """One of them; NoSuchPath when there is none."""
        content = self._files.get(name)
        if content is None:
            raise NoSuchPath("The dashboard has no such file: load the page again.")
        response = Response(content, mimetype=_KINDS[name[name.rindex(".") :]])
        response.headers["Cache-Control"] = FOREVER if version == self.version else "no-store"
        return response
