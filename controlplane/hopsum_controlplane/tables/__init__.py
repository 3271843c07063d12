# SPDX-License-Identifier: Apache-2.0
"""Entries that a job puts on a switch: one module per control of the P4 program, under the same name.

Builders are pure: a job in, entries out. The Controller decides in which order they are written.
"""
