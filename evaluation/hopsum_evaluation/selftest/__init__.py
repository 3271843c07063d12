# SPDX-License-Identifier: Apache-2.0
"""`hopsum selftest`: worker processes sum vectors through a switch, and numpy judges them. Needs no torch.

command   arguments, the run from start to end
worker    what a worker process does
vectors   what is summed, and what numpy says
report    the table and the JSON
"""
