# SPDX-License-Identifier: Apache-2.0
"""Several switches, their jobs, the members of these, and the books on disk that outlive the controller."""
