"""From the configuration to policies."""

from __future__ import annotations

from pathlib import Path

from orchestrator.config import Config, build
from orchestrator.policies import policies


def _config(tmp_path: Path, **pool: object) -> Config:
    return build({"state_dir": str(tmp_path), "server": {"public_host": "games.example"}, "pools": {"main": pool}})


def test_direct_engines_are_advertised_at_the_public_host(tmp_path: Path) -> None:
    """Report 40: clients of a pool with expose = "direct" get the address that the host is reached by, not the one it binds to."""
    policy = policies(_config(tmp_path, expose="direct"))["main"]
    assert (policy.host, policy.advertise) == ("0.0.0.0", "games.example")


def test_local_engines_stay_on_the_loopback_address(tmp_path: Path) -> None:
    """Without expose = "direct" engines listen on 127.0.0.1 and nowhere else, whatever the public host is."""
    policy = policies(_config(tmp_path))["main"]
    assert (policy.host, policy.advertise) == ("127.0.0.1", "127.0.0.1")


def test_the_configured_image_is_always_allowed(tmp_path: Path) -> None:
    """An administrator can always go back to the image that the configuration names."""
    policy = policies(_config(tmp_path, image="engine:1", allowed_images=("engine:2", "engine:1")))["main"]
    assert policy.allowed_images == ("engine:1", "engine:2")


def test_engines_serve_again_only_where_the_pool_says_reuse(tmp_path: Path) -> None:
    """One engine serves one lease unless the pool asks for recycle = "reuse"."""
    assert not policies(_config(tmp_path))["main"].reuse
    assert policies(_config(tmp_path, recycle="reuse", max_uses=3))["main"].reuse
