# SPDX-License-Identifier: Apache-2.0
"""`hosts://`: aggregation that is spread over the ranks' own hosts, with nothing to start beforehand.

host_address    the address of a rank for its peers
reach           datagrams and connections between all addresses, tried before anything is started
children        processes that end with this one; an embedded switch as one of them
lost_hosts      the job without the hosts that are lost: their shards move
job_over_hosts  the steps: addresses, reachability, a switch on every host, a controller, the job
"""
