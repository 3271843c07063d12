# SPDX-License-Identifier: Apache-2.0
"""`hopsum demo`: torch DDP on several worker processes, its gradients summed by a switch, beside the same in fp32.

command   arguments, the run from start to end
worker    what a worker process does
model     the images and the network
account   what was counted where, and so what was lost between
report    the table and the JSON
"""
