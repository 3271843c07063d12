# SPDX-License-Identifier: Apache-2.0
"""`hopsum demo`: torch DDP on several worker processes, its gradients summed by a switch, beside the same in fp32.

command   arguments, the run from start to end
worker    what a worker process does
model     the images and the network
report    the table and the JSON
"""
