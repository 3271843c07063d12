# SPDX-License-Identifier: Apache-2.0
"""The reference interpreter: IR on Python integers, one file per construct.

Expressions and actions become Python functions once, when the program is loaded. All other constructs are bound
objects. The behaviour is that of the behavioral model's simple_switch. Where simple_switch is undefined, the module of
the construct documents the behaviour here.
"""
