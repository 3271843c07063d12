# SPDX-License-Identifier: Apache-2.0
"""What the graders try: one module for each level, with the tuple `CASES`."""
