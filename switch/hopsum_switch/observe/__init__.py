# SPDX-License-Identifier: Apache-2.0
"""Looking into a running switch: traces, coverage, snapshots of state, metrics. None of it changes what is seen."""
