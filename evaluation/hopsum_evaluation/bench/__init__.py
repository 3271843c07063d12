# SPDX-License-Identifier: Apache-2.0
"""`hopsum bench WHAT`: measurements, each with the machine, versions, commit and seed that made it.

codec      elements per second and error of every codec and backend, on one core
  codec_subjects   what is timed of a codec, codec_threads: on two threads, codec_lossless: on sparse vectors
  codec_report     their figures as JSON and as tables
  published        the published worker in plain torch, as a process beside them
lossless   elements per second, bytes and memory of codec lossless on a sparse vector
allreduce  seconds of an all-reduce over links of a given rate, beside gloo on the same links
  allreduce_run    links, switch, workers taking turns; allreduce_worker: their processes; allreduce_report: figures
dataplane  codes per second of the switches
  subjects   what is measured, all of it standing at the same time
  pipeline   engines in memory; sockets, load, echo: switch processes under load; startup: until `ready`, and memory
  naive      the program of evaluation/naive behind the shipped one's control plane
  traffic    datagrams made beforehand, and the sums they must bring
  report     figures as JSON and as a table
controlplane   jobs made and ended, table writes, adoption; controlplane_run: what is done to each switch
placement  cores: who works where, and how busy they are
timing     medians of alternating runs; where they ran
"""
