"""Import Ray and connect to a cluster."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from condenset.errors import UserError, format_error

CONNECT_SECONDS = 10.0
QUIET = {  # environment variables
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # print no messages of daemons to stdout; the events of the run have the reasons
}


def import_ray() -> Any:
    """Import Ray, which is an extra. It reads environment variables when it is imported."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise UserError("the engine 'ray' needs Ray: install it with 'pip install condenset[ray]'") from None
    return ray


def connect(ray: Any, address: str | None) -> None:
    """Connect to a cluster by its address, or start a Ray of this machine."""
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        options |= {"include_dashboard": False}
        address = "local"  # never a cluster that happens to run on this machine
    try:
        ray.init(address=address, **options)
    except Exception as error:  # Ray raises errors of many types
        place = "on this machine" if address == "local" else f"at {address!r}"
        raise UserError(f"cannot connect to Ray {place}: {format_error(error)}") from error


def check_reachable(address: str) -> None:
    """Raise a UserError if nothing listens at HOST:PORT: Ray would try for minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not (separator and port.isdecimal()):
        return  # "auto", or the name of a cluster
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot connect to Ray at {address!r}: {format_error(error)}") from None
