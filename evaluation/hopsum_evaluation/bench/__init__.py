# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench WHAT`: measurements, each with the machine, versions, commit and seed that made it.

allreduce       seconds of an all-reduce over links of a given rate; allreduce_worker: its processes
scaling         all-reduces over more and more hosts
placements      where the switches of both run
codec_speed     elements per second and error of every codec and backend; lossless_rate: of codec lossless
dataplane       codes per second of the switches
engine_load     engines in memory; socket_load: switch processes over sockets; made_datagrams: traffic and its sums
timing          medians of alternating runs, machine and versions, cores and processor time
"""
