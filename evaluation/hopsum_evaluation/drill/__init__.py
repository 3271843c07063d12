# SPDX-License-Identifier: Apache-2.0
"""`hopsum drill`: break what can break, in a real system of processes, and check what becomes of it.

command    arguments, each drill in a process of its own, progress and the table
catalogue  all drills by name
base       what a drill is, is given, and says
testbed    switch and controller, what is done to them, what is left; testbed_network: addresses, namespaces and links
training_job   a job and its workers            worker    a process of one; training: the model that it trains
journal    what workers write down              checks    what is computed from it
news       when ranks know of another one       proxy     TCP connections that can die in silence
workers, programs, switch, controller, connections, network, jobs, churn, crowd    the drills, by what they break
"""
