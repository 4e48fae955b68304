"""Who holds DIAMBRA_ENVS."""

from __future__ import annotations

import os

import pytest

from client_sdk._environ import NAME, Claims


@pytest.mark.parametrize("former", [None, "mine:1"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_latest_claim_holds_and_the_former_value_returns(
    monkeypatch: pytest.MonkeyPatch, former: str | None, order: tuple[int, ...]
) -> None:
    """In whatever order claims are dropped, the latest one left holds, and the former value is back after the last."""
    if former is not None:
        monkeypatch.setenv(NAME, former)
    claims, owners = Claims(), [object() for _ in range(3)]
    for number, owner in enumerate(owners):
        claims.put(owner, f"engine:{number}")
    left = [0, 1, 2]
    for number in order:
        assert os.environ[NAME] == f"engine:{left[-1]}"
        claims.drop(owners[number])
        left.remove(number)
    assert os.environ.get(NAME) == former


def test_claim_can_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that is not the latest can change without showing."""
    claims, one, two = Claims(), object(), object()
    claims.put(one, "a:1")
    claims.put(two, "b:1")
    claims.put(one, "a:2")
    assert os.environ[NAME] == "b:1"
    claims.drop(two)
    assert os.environ[NAME] == "a:2"
    claims.drop(one)
    claims.drop(one)
    assert NAME not in os.environ
