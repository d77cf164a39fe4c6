"""The nodes of the Ray cluster of the tests. Their addresses differ, as those of several machines do."""

from __future__ import annotations

from typing import Any

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
CLIENT_PORT = 24317  # of the server for addresses that begin with ray://
SECOND_NODE, LATE_NODE = "127.0.0.2", "127.0.0.3"
