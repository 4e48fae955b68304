"""ROM archives: which ones DIAMBRA lists, and what lies in a folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

LISTED_BY = "diambra-arena 2.2.7"
LISTED = {
    "doapp.zip": "d95855c7d8596a90f0b8ca15725686567d767a9a3f93a8896b489a160e705c4e",
    "sfiii3n.zip": "7239b5eb005488db22ace477501c574e9420c0ab70aeeb0795dfeb474284d416",
    "tektagtac.zip": "57be777eae0ee9e1c035a64da4c0e7cb7112259ccebe64e7e97029ac7f01b168",
    "umk3r10.zip": "f48216ad82f78cb86e9c07d2507be347f904f4b5ae354a85ae7c34d969d265af",
    "samsh5sp.zip": "adf33d8a02f3d900b4aa95e62fb21d9278fb920b179665b12a489bd39a6c103d",
    "kof98umh.zip": "beb7bdea87137832f5f6d731fd1abd0350c0cd6b6b2d57cab2bedbac24fe8d0a",
    "mvsc.zip": "6f63627cc37c554f74e8bf07b21730fa7f85511c7d5d07449850be98dde91da8",
    "xmvsf.zip": "833aa46af63a3ad87f69ce2bacd85a4445f35a50e3aff4f793f069b205b51c60",
    "soulclbr.zip": "a07a1a19995d582b56f2865783c5d7adb7acb9a6ad995a26fc7c4cfecd821817",
}
"""Archive and SHA-256 of each game, for a host where DIAMBRA's client is not installed."""
_DISTRIBUTION, _LIST = "diambra-arena", "integratedGames.json"
MOST_FILES = 2000
"""A folder with more in it is not one of ROMs: nobody waits for all of that to be read."""


@dataclass(frozen=True, slots=True)
class RomList:
    """Name of archive -> SHA-256, and where that is from."""

    listed: dict[str, str]
    source: str
    installed: bool  # DIAMBRA's own list was read; else it is the one kept here


@dataclass(frozen=True, slots=True)
class RomFile:
    """An archive in a ROM folder, or below it; ``sha256`` is None when it cannot be read."""

    name: str
    sha256: str | None
    below: str = ""  # the folder it is in, when that is not the ROM folder itself


@dataclass(frozen=True, slots=True)
class RomFolder:
    """What lies in the ROM folder of a pool; ``fault`` when it cannot be looked into."""

    pool: str
    path: str
    files: tuple[RomFile, ...] = ()
    unzipped: tuple[str, ...] = ()  # folders named like a listed archive
    others: int = 0  # files that are no archives
    fault: str | None = None


def known() -> RomList:
    """DIAMBRA's own list when its client is installed beside the daemon, else the one kept here."""
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
        (place,) = (file for file in distribution.files or () if file.name == _LIST)
        games = json.loads(Path(str(distribution.locate_file(place))).read_text("utf-8"))
        listed = {str(game["original_rom_name"]): str(game["sha256"]) for game in games.values()}
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError, TypeError):
        return RomList(LISTED, LISTED_BY, installed=False)
    return RomList(listed, f"{_DISTRIBUTION} {distribution.version}", installed=True)


def survey(pool: str, folder: Path, listed: RomList) -> RomFolder:
    """Look into a ROM folder and one level below, and read every archive's SHA-256."""
    try:
        entries = sorted(folder.iterdir())[:MOST_FILES]
    except OSError as error:
        return RomFolder(pool, str(folder), fault=error.strerror or str(error))
    stems = {Path(name).stem for name in listed.listed}
    archives, unzipped, others = list[RomFile](), list[str](), 0
    for entry in entries:
        if entry.is_dir():
            inside = _archives(entry)
            archives += inside
            if not inside and entry.name in stems:
                unzipped.append(entry.name)
        elif entry.suffix.lower() == ".zip":
            archives.append(RomFile(entry.name, _sha256(entry)))
        else:
            others += 1
    return RomFolder(pool, str(folder), tuple(archives), tuple(unzipped), others)


def _archives(folder: Path) -> list[RomFile]:
    try:
        found = sorted(folder.glob("*.zip"))[:MOST_FILES]
    except OSError:
        return []
    return [RomFile(path.name, _sha256(path), below=str(folder)) for path in found]


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
