# SPDX-License-Identifier: Apache-2.0
"""The health of workers and jobs, for both sides of the wire: heartbeats, snapshots, rates.

heartbeat  names of what a worker tells the controller of itself
snapshots  two snapshots of a controller: deltas, stragglers; times and a job's status in words
rates      the same of all switches and jobs, for `hopsum top` and the controller's page
"""
