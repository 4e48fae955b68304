"""Where the instance gets Cornerman from: by default where this installation came from."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from client_sdk.ec2.faults import CloudFault

_FORM = re.compile(r"(git\+)?https://[A-Za-z0-9._~:/@%+=,?&-]+")
_HOW = "name it with --source: git+https://HOST/REPOSITORY[@COMMIT], or the https:// address of a .tar.gz of the source"


def checked(source: str | None) -> str:
    """``source``, or what pip wrote down about this installation; CloudFault when an instance could not fetch it."""
    found = source if source is not None else of_this_installation(_written_by_pip())
    if found is None:
        raise CloudFault(
            "It is not known where the instance can fetch Cornerman from, as of a clone whose commit was not pushed to its "
            f"https:// origin: {_HOW}."
        )
    if not _FORM.fullmatch(found):
        raise CloudFault(f"An instance cannot fetch Cornerman from {found}: {_HOW}.")
    if "@" in urlsplit(found).netloc:
        raise CloudFault(f"The address of the source has a login in it, which the stack would show to others: {_HOW}.")
    return found


def of_this_installation(direct_url: str | None) -> str | None:
    """The repository and commit, or the archive, in pip's ``direct_url.json``; of a clone where that is from; else None."""
    if direct_url is None:
        return None
    known = json.loads(direct_url)
    url, vcs = str(known.get("url", "")), known.get("vcs_info")
    if vcs and vcs.get("vcs") == "git" and url.startswith("https://"):
        return f"git+{url}@{vcs['commit_id']}"
    if url.startswith("file://"):
        return of_a_clone(Path(unquote(urlsplit(url).path)))
    return url if url.startswith("https://") and url.endswith((".tar.gz", ".tgz")) else None


def of_a_clone(folder: Path) -> str | None:
    """Where a clone is from and the commit that it is at; None when others cannot fetch that, because it was not pushed for one."""
    origin = _git(folder, "remote", "get-url", "origin")
    if not origin.startswith("https://") or not _git(folder, "branch", "--remotes", "--contains", "HEAD"):
        return None
    return f"git+{origin}@{_git(folder, 'rev-parse', 'HEAD')}"


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _written_by_pip() -> str | None:
    try:
        return distribution("cornerman").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
