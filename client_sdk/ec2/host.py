"""What the instance itself does at its first boot: ``python -m client_sdk.ec2.host``; it never prints a secret."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from client_sdk._errors import CornermanError
from client_sdk._url import parse
from client_sdk.ec2.faults import CloudFault, plainly


def _client(service: str) -> Any:
    import boto3

    with plainly():
        return boto3.client(service)  # type: ignore[call-overload]


@click.group()
def host() -> None:
    """Move secrets and ROMs between this instance and AWS."""


@host.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True))
@click.argument("name")
def publish(file: Path, name: str) -> None:
    """Put the connection string in FILE, encrypted, where NAME says."""
    text = file.read_text("utf-8").strip()
    parse(text)
    with plainly():
        _client("ssm").put_parameter(Name=name, Value=text, Type="SecureString", Overwrite=True)


@host.command()
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path))
def credentials(name: str, file: Path) -> None:
    """Write DIAMBRA's credentials from NAME into FILE, in place, because running engines have it mounted."""
    with plainly():
        value = _client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"]
    with file.open("w", encoding="utf-8") as out:
        out.write(value)
    file.chmod(0o640)


@host.command()
@click.argument("uri")
@click.argument("folder", type=click.Path(path_type=Path))
def roms(uri: str, folder: Path) -> None:
    """Copy the archives below URI (s3://BUCKET/FOLDER) into FOLDER; what is there in full already is left alone."""
    bucket, _, prefix = uri.rstrip("/").removeprefix("s3://").partition("/")
    prefix = f"{prefix}/" if prefix else ""  # else another folder whose name only begins like this one would come along
    client, copied, found = _client("s3"), 0, 0
    folder.mkdir(parents=True, exist_ok=True)
    with plainly():
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for item in page.get("Contents", []):
                name = Path(item["Key"]).name
                if item["Key"].endswith("/"):
                    continue
                found += 1
                target = folder / name
                if target.exists() and target.stat().st_size == item["Size"]:
                    continue
                part = target.with_suffix(target.suffix + ".part")
                client.download_file(bucket, item["Key"], str(part))
                part.chmod(0o644)
                part.replace(target)
                copied += 1
    if not found:
        raise CloudFault(f"There is no file below {uri}: put the ROM archives there, as they were downloaded.")
    click.echo(f"{copied} of {found} files copied to {folder}", err=True)


def main() -> None:
    """Run one of the commands; a failure is one sentence."""
    try:
        host(standalone_mode=True)
    except CornermanError as fault:
        sys.exit(str(fault))


if __name__ == "__main__":
    main()
