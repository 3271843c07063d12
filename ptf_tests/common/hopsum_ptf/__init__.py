# SPDX-License-Identifier: Apache-2.0
"""What the data-plane cases share: the test bed, frames, the oracle beside the switch, recordings, the runner."""
