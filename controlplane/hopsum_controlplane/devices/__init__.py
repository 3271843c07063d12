# SPDX-License-Identifier: Apache-2.0
"""Switches as the control plane sees them: one interface, one driver file per target.

    base          the interface, and what a target declares about itself
    drivers       opens a switch by the name of its driver
    reconnecting  a device that opens a new session when one was lost
    p4runtime     everything that targets with a P4Runtime server share
    native        the embedded switch
    bmv2          simple_switch_grpc
    tofino        a Tofino switch behind a BF Runtime server

Only `p4runtime` imports gRPC.
"""
