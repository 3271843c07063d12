# SPDX-License-Identifier: Apache-2.0
"""What workers and the controller tell, seen from outside; used on both sides, so nothing is imported but the wire.

heartbeat  names of what a worker tells the controller of itself
snapshots  two snapshots of a controller: deltas, stragglers
rates      the same of all switches and jobs, for `hopsum top` and the controller's page
words      times in words, and how the health of a job is shown
"""
