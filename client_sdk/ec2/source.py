"""Where the instance gets Cornerman from: by default where this installation came from."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, distribution

from client_sdk.ec2.faults import CloudFault

_FORM = re.compile(r"(git\+)?https://[A-Za-z0-9._~:/@%+=,?&-]+")
_HOW = "name it with --source: git+https://HOST/REPOSITORY[@COMMIT], or the https:// address of a .tar.gz of the source"


def checked(source: str | None) -> str:
    """``source``, or what pip wrote down about this installation; CloudFault when an instance could not fetch it."""
    found = source if source is not None else of_this_installation(_written_by_pip())
    if found is None:
        raise CloudFault(f"It is not known where the instance can fetch Cornerman from: {_HOW}.")
    if not _FORM.fullmatch(found):
        raise CloudFault(f"An instance cannot fetch Cornerman from {found}: {_HOW}.")
    return found


def of_this_installation(direct_url: str | None) -> str | None:
    """The repository and commit, or the archive, in pip's ``direct_url.json``; None for a folder or a package index."""
    if direct_url is None:
        return None
    known = json.loads(direct_url)
    url, vcs = str(known.get("url", "")), known.get("vcs_info")
    if vcs and vcs.get("vcs") == "git" and url.startswith("https://"):
        return f"git+{url}@{vcs['commit_id']}"
    return url if url.startswith("https://") and url.endswith((".tar.gz", ".tgz")) else None


def _written_by_pip() -> str | None:
    try:
        return distribution("cornerman").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
