# SPDX-License-Identifier: Apache-2.0
"""The cases of the graders: one module for each level, with `CASES`, and `WORKER_CASES` where it has a worker."""
