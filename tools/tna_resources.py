# SPDX-License-Identifier: Apache-2.0
"""The resources of a Tofino chip that a program takes, read from the logs of p4c's Tofino back end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# What is counted in a stage, and where its log has the list of those in use.
COUNTED = {
    "sram": ("rams", "srams"),
    "tcam": ("tcams", "tcams"),
    "map_ram": ("map_rams", "maprams"),
    "register_units": ("meter_alus", "meters"),
    "counter_units": ("statistic_alus", "stats"),
    "logical_tables": ("logical_tables", "ids"),
    "hash_bits": ("hash_bits", "bits"),
    "gateways": ("gateways", "gateways"),
}


def resource_summary(pipe: Path) -> dict[str, Any]:
    """Read the stages, resources and PHV that a program uses from the logs in the compiler's folder `pipe`."""
    resources = json.loads((pipe / "logs" / "resources.json").read_text())["resources"]
    logged = resources["mau"]
    stages = [stage_usage(stage) for stage in logged["mau_stages"]]
    return {
        "stages": max(number for number, stage in enumerate(stages, 1) if stage["logical_tables"]),
        "stages_available": logged["nStages"],
        "available_per_stage": stage_capacity(logged["mau_stages"][0]),
        "used": {name: sum(stage[name] for stage in stages) for name in COUNTED},
        "used_per_stage": stages,
        "phv": phv_usage(resources["phv_containers"], json.loads((pipe / "logs" / "phv.json").read_text())),
    }


def stage_usage(stage: dict[str, Any]) -> dict[str, int]:
    """Count the resources that one stage uses."""
    return {name: len(stage[group][key]) for name, (group, key) in COUNTED.items()}


def stage_capacity(stage: dict[str, Any]) -> dict[str, int]:
    """Return the sizes of a stage's resources, of all that its log names."""
    return {
        "sram": stage["rams"]["nRows"] * stage["rams"]["nColumns"],
        "tcam": stage["tcams"]["nRows"] * stage["tcams"]["nColumns"],
        "map_ram": stage["map_rams"]["nRows"] * stage["map_rams"]["nUnits"],
        "register_units": stage["meter_alus"]["nAlus"],
        "counter_units": stage["statistic_alus"]["nAlus"],
        "logical_tables": stage["logical_tables"]["size"],
        "hash_bits": stage["hash_bits"]["nBits"] * stage["hash_bits"]["nFunctions"],
    }


def phv_usage(containers: dict[str, Any], log: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return containers in use and available, and bits in use, of each kind of container (normal, tagalong)."""
    kinds = {}
    for kind, groups in containers.items():
        used = [container for container in log["containers"] if container["container_type"] == kind]
        kinds[kind] = {
            "containers_available": sum(group["units"] for group in groups),
            "containers": len(used),
            "bits": sum(len(used_bits(container)) for container in used),
        }
    return kinds


def used_bits(container: dict[str, Any]) -> set[int]:
    """Return the numbers of the bits of a container that hold a field."""
    ranges = [part["slice_info"] for part in container["slices"]]
    return {bit for part in ranges for bit in range(part["lsb"], part["msb"] + 1)}
