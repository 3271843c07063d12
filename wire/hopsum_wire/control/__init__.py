# SPDX-License-Identifier: Apache-2.0
"""The messages between hosts and the controller.

control.proto   the messages            control_pb2   made from it by tools/generate_rpc.py
services        its services as values  values        a message as plain values
places          addresses of a controller

Importing this package imports no protobuf. `control_pb2` and `services` do.
"""
