# SPDX-License-Identifier: Apache-2.0
"""`hopsum job`: an operator's jobs at a controller.

job_command   the words: create, list, show, move, ...
create        a job from a codec or tables, and where its token goes
report        tables for people
"""
