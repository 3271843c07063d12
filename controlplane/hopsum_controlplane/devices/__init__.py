# SPDX-License-Identifier: Apache-2.0
"""Switches as the control plane sees them: one interface, one driver file for each target.

    device             the interface, and the limits that a target declares
    drivers            opens a switch by the name of its driver
    reconnecting       a device that opens a new session when one was lost
    p4runtime_device   everything that targets with a P4Runtime server share
    p4runtime_session  one session as the primary client, and its election id
    native             the embedded switch
    bmv2               simple_switch_grpc
    tofino             a Tofino switch behind a BF Runtime server

Only `p4runtime_device` and `p4runtime_session` import gRPC.
"""
