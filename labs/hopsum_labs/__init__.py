# SPDX-License-Identifier: Apache-2.0
"""A course on in-network aggregation: exercises with gaps, solutions, and graders for any student's program.

`exercises` has what a student starts from, `solutions` what fills the gaps, `cases` what the graders try. `hopsum lab`
is the command. A grader needs no root: it runs the compiled program in the embedded switch.
"""
