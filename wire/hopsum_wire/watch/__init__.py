# SPDX-License-Identifier: Apache-2.0
"""The health of workers and jobs, for both sides of the wire: heartbeats, snapshots, rates.

heartbeat  names of what a worker tells the controller of itself
snapshots  two snapshots of a controller: deltas, stragglers
rates      the same of all switches and jobs, for `hopsum top` and the controller's page
words      times in words, and how the health of a job is shown
"""
