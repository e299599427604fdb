"""One node against two: ``python -m benchmarks.cluster --out cluster.json [OVERRIDES of train.py]``.

Starts a Ray cluster of one working node on this machine, trains a few seeds, does the same with two working nodes, and
compares wall time and the policies' speed-ups, which must be equal. On one machine, two nodes are faster only as
far as it has cores for both.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agents.cluster.ray_cluster import ray_module
from agents.cluster.status import STATUS, Status
from agents.paths import PROJECT
from runtime.errors import UserError
from runtime.files import write_json

SCHEMA = 1
OBJECTS_BYTES = 80 * 2**20


@dataclass(frozen=True)
class Sweep:
    """One sweep.

    Attributes:
        nodes: Ray nodes that work, of one core each.
        wall_s: From starting ``train.py`` to its end; starting the cluster is not part of it.
        used: Nodes that jobs ran on.
        speedups: Of the policies over plain decoding, by job.
    """

    nodes: int
    wall_s: float
    used: int
    speedups: dict[str, float | None]


def run_sweep(nodes: int, seeds: Sequence[int], overrides: Sequence[str], folder: Path) -> Sweep:
    """Train some seeds on a cluster of so many working nodes.

    Raises:
        UserError: If Ray is not installed or a job fails.
    """
    ray_module()
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": OBJECTS_BYTES}
    head = {**node, "num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            cluster.add_node(**node)
        began_s = time.perf_counter()
        names = ",".join(map(str, seeds))
        command = [sys.executable, str(PROJECT / "train.py"), "-m", "hydra/launcher=ray", f"seed={names}"]
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        done = subprocess.run(
            [*command, f"hydra.sweep.dir={folder}", *overrides], env=environment, cwd=PROJECT, check=False
        )
        wall_s = time.perf_counter() - began_s
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
    if done.returncode:
        raise UserError(f"the sweep on {nodes} nodes failed: see above, and {folder}")
    statuses = [Status.load(path.parent) for path in sorted(folder.glob(f"*/{STATUS}"))]
    speedups = {status.name: status.speedup for status in statuses}
    return Sweep(nodes, round(wall_s, 1), len({status.node for status in statuses}), speedups)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status: 1 if the figures differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4, help="seeds to train")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench-cluster.json"), help="JSON file of the results")
    options, overrides = parser.parse_known_args(arguments)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        with TemporaryDirectory() as folder:
            sweeps = [run_sweep(n, range(options.seeds), overrides, Path(folder) / f"{n}-nodes") for n in (1, 2)]
    except UserError as error:
        print(f"benchmarks.cluster: {error}", file=sys.stderr)
        return 2
    one, two = sweeps
    same = one.speedups == two.speedups
    write_json(
        options.out,
        {
            "schema": SCHEMA,
            "overrides": overrides,
            "cores": os.cpu_count(),
            "sweeps": [asdict(sweep) for sweep in sweeps],
            "same_figures": same,
        },
    )
    print(
        f"1 node {one.wall_s:.0f} s, 2 nodes {two.wall_s:.0f} s, figures {'equal' if same else 'DIFFER'}: {options.out}"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
