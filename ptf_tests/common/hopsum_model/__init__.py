# SPDX-License-Identifier: Apache-2.0
"""Intel's model of Tofino 1 and 2, driven through its test harness: entries, groups, frames, counters.

    chips     names and addresses of the two chips
    harness   the process: commands in, what it says and the frames that leave out
    chip_context  the assembler's context.json: the possible places of a table's entries
    model_tables  entries -> commands, each with its place
    groups    multicast groups -> memory and registers

The model is no part of this repository. docs/tofino.md says where its sources are and what it was seen to do.
"""
