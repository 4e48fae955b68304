"""Coming back to a host: turn it on, find its address, wait until it can lease."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from client_sdk import models
from client_sdk._admin_api import AdminApi
from client_sdk._errors import ConnectionFault, CornermanError, Refused
from client_sdk._http import Session
from client_sdk._url import Target, parse
from client_sdk.ec2.faults import CloudFault
from client_sdk.ec2.stack import WELL, Stack, View

ON_WITHIN_S = 300.0
POLL_S = 3.0


def connect(stack: Stack, *, lease_within_s: float) -> str:
    """The connection string with the host's address of now, once it can lease; with 0 s it is not waited for."""
    began = stack.clock()
    while True:
        target = replace(parse(stack.connection_string()), host=_turn_on(stack))
        left_s = lease_within_s - (stack.clock() - began)
        if lease_within_s <= 0 or await_leasable(stack, target, within_s=left_s):
            return target.with_token(target.token.get_secret_value())


def existing(stack: Stack) -> View:
    """How the host stands; CloudFault without one."""
    view = stack.view()
    if view is None:
        raise CloudFault(f"There is no host {stack.name} in {stack.region}: make one with `cornerman ec2 up`.")
    return view


def _turn_on(stack: Stack) -> str:
    """Start the machine if it is off, and wait until it has an address."""
    began, told = stack.clock(), False
    while True:
        view = existing(stack)
        if view.state.endswith("_IN_PROGRESS") and view.instance is None:
            raise CloudFault(
                f"The host {stack.name} is still being made or removed ({view.state}): wait, then try again."
            )
        if view.state not in WELL and not view.state.endswith("_IN_PROGRESS"):
            raise CloudFault(
                f"The host {stack.name} is left from a failure ({view.state}): `cornerman ec2 down` removes it."
            )
        if view.instance is None or view.power in ("terminated", "shutting-down"):
            raise CloudFault(
                f"The machine of {stack.name} was terminated outside of Cornerman: `cornerman ec2 down`, then `up` again."
            )
        if view.power == "running" and view.address:
            stack.progress.done()
            return view.address
        if view.power == "stopped" and not told:
            stack.machines.start(view.instance)
            told = True
        if stack.clock() - began > ON_WITHIN_S:
            raise CloudFault(
                f"The machine {view.instance} is {view.power} and has {view.address or 'no public address'} after "
                f"{ON_WITHIN_S / 60:.0f} minutes: look at it in the AWS console."
            )
        stack.progress.show("Starting the machine", elapsed_s=stack.clock() - began)
        stack.pause(POLL_S)


def await_leasable(stack: Stack, target: Target, *, within_s: float) -> bool:
    """True when a pool leases, False when the machine goes down, as an idle one does; CloudFault after ``within_s``."""
    began, why = stack.clock(), ""
    session = Session(target)
    with contextlib.closing(session):
        while True:
            try:
                session.command("GET", "/readyz", read_timeout_s=5.0, patient=False)
                if any(map(_leases, AdminApi(session).pools())):
                    stack.progress.done()
                    return True
                why = _faults(session)
            except Refused as fault:
                why = str(fault)
            except ConnectionFault as fault:
                why = str(fault)
                if existing(stack).power in ("stopping", "stopped"):
                    return False
            if stack.clock() - began > within_s:
                raise CloudFault(
                    f"The host cannot lease after {within_s:.0f} s: {why or 'its engines are still starting'} The addresses "
                    f"that may reach it are {existing(stack).allowed}; `cornerman ec2 allow` changes them."
                )
            stack.progress.show("Waiting until it can lease", elapsed_s=stack.clock() - began)
            stack.pause(POLL_S)


def _leases(pool: models.Pool) -> bool:
    """Whether its engines come up: one is ready, or leased by somebody, or none is wanted before it is asked for."""
    up = pool.counts.get(models.EngineState.READY, 0) + pool.counts.get(models.EngineState.LEASED, 0)
    return up > 0 or (pool.min_ready == 0 and pool.fault is None)


def _faults(session: Session) -> str:
    with contextlib.suppress(CornermanError):
        return " ".join(pool.fault for pool in AdminApi(session).pools() if pool.fault)
    return ""
