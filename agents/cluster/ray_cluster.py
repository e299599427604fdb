"""The Ray cluster: joined where an address says so, else started here and stopped afterwards."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from agents.paths import PROJECT
from runtime.errors import UserError
from runtime.threads import usable_threads

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before Ray is imported: it reports nothing to its makers

DEVICE = "device"
"""Ray resource of a node whose device may run live environments; one a node, and one live job claims all of it."""
OBJECTS_BYTES = 512 * 2**20
"""Shared memory of a local cluster's object store."""


def ray_module() -> ModuleType:
    """Ray, imported when it is needed.

    Raises:
        UserError: If it is not installed.
    """
    try:
        import ray
    except ImportError:
        raise UserError(
            'Ray is not installed: `pip install -e ".[cluster]"`, on every machine of the cluster'
        ) from None
    return ray


@contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """Ray, connected; left as it was if it was connected before.

    Args:
        address: ``host:port`` of the head node, or ``auto`` for the cluster this machine is in. None = the environment
            variable ``RAY_ADDRESS``, and without it a cluster of this machine alone.

    Raises:
        UserError: If Ray is not installed or no cluster answers at the address.
    """
    ray = ray_module()
    if ray.is_initialized():
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS") or None
    # A live job finds its GPU: Ray would hide it from workers that ask for none of Ray's GPUs.
    environment = {"PYTHONPATH": str(PROJECT), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    options: dict[str, Any] = {"log_to_driver": False, "runtime_env": {"env_vars": environment}}
    if address is None:
        options |= {
            "num_cpus": usable_threads(),
            "resources": {DEVICE: 1},
            "include_dashboard": False,
            "object_store_memory": OBJECTS_BYTES,
        }
    try:
        ray.init(address=address or "local", **options)  # None would join any cluster found on this machine
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"no Ray cluster at {address}: start one with `ray start --head` and give its address as RAY_ADDRESS, or "
            f"leave the address out for this machine alone; a cluster that asks for a token wants "
            f"RAY_AUTH_MODE=token, see docs/cluster.md ({error})"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def this_node(ray: Any) -> str:
    """Name of the node that this task runs on."""
    return f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:8]}"


def device_cpus(ray: Any) -> int:
    """Cores of the smallest node that has a device: a live job claims as many, so that nothing runs beside it.

    Raises:
        UserError: If no node has one.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get(DEVICE, 0) >= 1]
    if not nodes:
        raise UserError(
            "live jobs run on nodes with a device, got none in this cluster: start the nodes that have one with "
            """`ray start ... --resources='{"device": 1}'`"""
        )
    return max(1, min(int(node.get("CPU", 1)) for node in nodes))
