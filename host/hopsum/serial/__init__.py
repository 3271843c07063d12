# SPDX-License-Identifier: Apache-2.0
"""Communicators without a switch: they run one all-reduce after the other.

serial_communicator  `SerialCommunicator`: all but the sum; a subclass has only to agree, sum and leave
memory               `MemoryCommunicator`: ranks that are threads of one process
collective           `CollectiveCommunicator`: ranks of a process group of torch; the only module that imports torch
"""
