"""``cornerman upgrade-image``: a pool moves to the newest of its image, or to another, and is watched while it does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

from client_sdk import _local, models
from client_sdk._admin_api import AdminApi
from client_sdk._errors import CornermanError, NotFound
from client_sdk._http import Session

LOOK_EVERY_S = 1.0


@click.command("upgrade-image")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="The folder that was given to init.")
@click.option("--image", help="Another one of the allowed images.  [default: the newest of the pool's own]")
@click.option("--no-wait", is_flag=True, help="Only ask for it.")
@click.option("--timeout", "timeout_s", type=float, default=3600.0, show_default=True, help="Seconds to wait at most.")
@click.argument("name", metavar="[POOL]", required=False)
def upgrade_image(name: str | None, *, folder: Path | None, image: str | None, no_wait: bool, timeout_s: float) -> None:
    """Move POOL to the newest of its image (by default the only pool).

    The image is fetched while the pool goes on; then idle engines are renewed, with min_ready of them ready all the time. Leased engines keep
    theirs until their leases end. If the image cannot be had, the pool goes on with the one it has, and this ends with 1.
    """
    session = Session(_local.target(folder, admin=True))
    try:
        api = AdminApi(session)
        name = _name(api) if name is None else name
        if image is None:
            api.upgrade(name)
        else:
            api.change_pool(name, models.PoolPatch(image=image))
        if not no_wait:
            watch(lambda: _pool(api, name), click.echo, timeout_s=timeout_s)
    finally:
        session.close()


def watch(
    look: Callable[[], models.Pool],
    say: Callable[[str], None],
    *,
    timeout_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Say each change until no idle engine has an old image; CornermanError when the image cannot be had, or time is over."""
    give_up_at, said = time.monotonic() + timeout_s, ""
    while True:
        pool = look()
        if pool.image_fault is not None:
            raise CornermanError(
                f"{pool.image_fault.rstrip('.')}. The pool goes on with {pool.pinned}, and tries again by itself."
            )
        if (news := _news(pool)) != said:
            say(news)
            said = news
        if not pool.upgrading and pool.outdated == 0:
            return
        if time.monotonic() >= give_up_at:
            raise CornermanError(f"Pool {pool.name} is not done after {timeout_s:g} s; it goes on by itself.")
        sleep(LOOK_EVERY_S)


def _news(pool: models.Pool) -> str:
    if pool.upgrading:
        return f"Fetching {pool.image}; engines are started from {pool.pinned} meanwhile."
    later = f" {pool.outdated_leased} leased ones go with their leases." if pool.outdated_leased else ""
    if pool.outdated:
        trouble = f" Starts fail: {pool.fault}" if pool.fault else ""
        return f"{pool.outdated} idle engines are still of another image than {pool.pinned}.{later}{trouble}"
    return f"All idle engines of pool {pool.name} are {pool.pinned}.{later}"


def _pool(api: AdminApi, name: str) -> models.Pool:
    for pool in api.pools():
        if pool.name == name:
            return pool
    raise NotFound(f"There is no pool {name!r}: `cornerman status` lists those there are.")


def _name(api: AdminApi) -> str:
    pools = api.pools()
    if len(pools) != 1:
        raise CornermanError(f"There are several pools: name one of {', '.join(pool.name for pool in pools)}.")
    return pools[0].name
