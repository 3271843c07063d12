# SPDX-License-Identifier: Apache-2.0
"""`hopsum plan`: the bytes of a step, their time on the wire, and what this machine's measured costs make of them.

step_plan      the command: one page of arithmetic
traffic        bytes of whole frames that a worker sends and receives
paper_command  `hopsum plan paper`: the cost model of Homomorphic Parameter Compression (paper_model)
"""
