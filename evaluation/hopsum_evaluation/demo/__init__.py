# SPDX-License-Identifier: Apache-2.0
"""`hopsum demo`: torch DDP on several worker processes, its gradients summed by a switch, then the same in fp32.

training_demo    command: the run from start to end, its checks and tables
demo_worker      worker process
digits_network   images and network
counted_testbed  switches with workers around them, and the counters of all of them
"""
