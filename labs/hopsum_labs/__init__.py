# SPDX-License-Identifier: Apache-2.0
"""A course on in-network aggregation: exercises with gaps, solutions, and graders for any student's program.

`exercises` has the students' starting points, `solutions` fills their gaps, and `cases` has the graders' cases. `hopsum
lab` is the command. A grader needs no root: it runs the compiled program in the embedded switch.
"""
