# SPDX-License-Identifier: Apache-2.0
"""The common parts of the data-plane cases: testbed, frames, the oracle, recordings, the runner."""
