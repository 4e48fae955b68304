"""Checks of what engines are given: DIAMBRA's credentials and the games' ROMs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from orchestrator.doctor.findings import Finding, fault, ok, warning
from orchestrator.doctor.roms import RomFile, RomFolder, RomList

_LOGIN = "pip install diambra && diambra user login"


class Kind(Enum):
    """What is at a path."""

    FILE = "file"
    FOLDER = "folder"
    NOTHING = "nothing"
    HIDDEN = "hidden"  # this user may not even look


@dataclass(frozen=True, slots=True)
class CredentialFacts:
    """The credentials of a pool's engines; ``needed`` when its image is one of DIAMBRA's."""

    pool: str
    needed: bool
    path: str | None
    kind: Kind = Kind.NOTHING
    size: int = 0
    readable: bool = True  # by the user that engines run as, as far as its rights tell
    user: str = ""


def credentials(found: Iterable[CredentialFacts]) -> Iterator[Finding]:
    """Report 33: a file that is there, is a file, and can be read by the engine."""
    for facts in found:
        yield from _credentials(facts)


def _credentials(facts: CredentialFacts) -> Iterator[Finding]:
    if facts.path is None:
        if facts.needed:
            text = (
                f"Pool {facts.pool} has no credentials_path, so DIAMBRA's engine asks for a login and never comes up."
            )
            yield fault("credentials", text, f"{_LOGIN}, then set pools.{facts.pool}.docker.credentials_path")
        return
    where, quoted = f"credentials_path {facts.path} of pool {facts.pool}", shlex.quote(facts.path)
    match facts.kind:
        case Kind.FOLDER:
            text = f"{where} is a folder: Docker makes one when the file it shall mount is missing."
            yield fault("credentials", text, f"rmdir {quoted} && {_LOGIN} && cp ~/.diambra/credentials {quoted}")
        case Kind.NOTHING:
            yield fault("credentials", f"{where} does not exist.", f"{_LOGIN} && cp ~/.diambra/credentials {quoted}")
        case Kind.HIDDEN:
            yield warning("credentials", f"{where} cannot be looked at by this user.", "sudo cornerman doctor")
        case Kind.FILE if facts.size == 0:
            yield fault("credentials", f"{where} is empty.", f"{_LOGIN} && cp ~/.diambra/credentials {quoted}")
        case Kind.FILE if not facts.readable:
            text = f"{where} cannot be read by {facts.user}, as which engines run."
            yield fault("credentials", text, f"chgrp cornerman {quoted} && chmod 0640 {quoted}")
        case _:
            yield ok("credentials", f"{where} is a file that engines can read.")


@dataclass(frozen=True, slots=True)
class RomFacts:
    """The ROM folder of a pool, or None where none is set."""

    pool: str
    needed: bool
    folder: RomFolder | None


def roms(found: Iterable[RomFacts], listed: RomList) -> Iterator[Finding]:
    """Report 34: every archive under its name, where the engine looks, and of the version that DIAMBRA lists."""
    any_folder = False
    for facts in found:
        if facts.folder is not None:
            any_folder = True
            yield from _folder(facts.folder, listed)
        elif facts.needed:
            text = f"Pool {facts.pool} has no roms_path, so that every game fails when it is started."
            yield fault("roms", text, f"set pools.{facts.pool}.docker.roms_path to the folder of the archives")
    if any_folder and not listed.installed:
        yield ok(
            "roms", f"Compared with the list of {listed.source}: DIAMBRA's client is not installed beside the daemon."
        )


def _folder(folder: RomFolder, listed: RomList) -> Iterator[Finding]:
    if folder.fault is not None:
        text = f"roms_path {folder.path} of pool {folder.pool} cannot be looked into ({folder.fault})."
        yield fault("roms", text, f"ls -ld {shlex.quote(folder.path)}")
        return
    good = [file.name for file in folder.files if not file.below and listed.listed.get(file.name) == file.sha256]
    yield from (finding for file in folder.files if (finding := _file(file, folder, listed, good)) is not None)
    for name in folder.unzipped:
        text = f"{folder.path}/{name} is an unpacked archive: the engine wants {name}.zip as it was downloaded."
        yield fault("roms", text, f"put {name}.zip into {shlex.quote(folder.path)}")
    if good:
        yield ok("roms", f"{folder.path} has {', '.join(good)}, as {listed.source} lists them.")
    elif not folder.files and not folder.unzipped:
        what = f"{folder.others} files and no archive" if folder.others else "nothing"
        text = f"There is {what} in roms_path {folder.path} of pool {folder.pool}: games need their archives, not unzipped."
        yield fault("roms", text, f"cp doapp.zip {shlex.quote(folder.path)}/")


def _file(file: RomFile, folder: RomFolder, listed: RomList, good: list[str]) -> Finding | None:
    path, here = f"{file.below or folder.path}/{file.name}", shlex.quote(f"{folder.path}/")
    if file.sha256 is None:
        return fault("roms", f"{path} cannot be read by this user.", f"chmod a+r {shlex.quote(path)}")
    right = next((name for name, sha256 in listed.listed.items() if sha256 == file.sha256), None)
    if file.below:
        name = right or (file.name if file.name in listed.listed else None)
        if name is None or name in good:
            return None
        text = f"{path} is in the wrong folder: the engine looks in {folder.path} itself and in no folder below."
        return fault("roms", text, f"mv {shlex.quote(path)} {here}{name}")
    if right == file.name:
        return None
    if right is not None:
        return fault("roms", f"{path} is {right} under another name.", f"mv {shlex.quote(path)} {here}{right}")
    if (wanted := listed.listed.get(file.name)) is not None:
        text = f"{path} is of another version: its SHA-256 is {file.sha256}, and {listed.source} lists {wanted}."
        return fault("roms", text, f"find the archive whose sha256sum is {wanted}")
    return warning(
        "roms", f"{path} is no archive that {listed.source} lists, so no game uses it.", f"rm {shlex.quote(path)}"
    )
