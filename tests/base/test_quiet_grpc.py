# SPDX-License-Identifier: Apache-2.0
"""The words of a peer in the errors of gRPC calls."""

from __future__ import annotations

from hopsum_base.quiet_grpc import details, grpc


class Failed(grpc.RpcError):
    """A call that a peer ended with its own words."""

    def __init__(self, told: str | None) -> None:
        super().__init__()
        self.told = told

    def details(self) -> str | None:
        return self.told


def test_details_are_one_line_without_control_characters() -> None:
    assert details(Failed("GOAWAY: \x1b[2J\nforged \u202e \x85 für")) == r"GOAWAY: \x1b[2J\nforged \u202e \x85 für"
    assert details(Failed(None)) == details(Failed("")) == "no reason given"
