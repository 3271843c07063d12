# SPDX-License-Identifier: Apache-2.0
"""The reference interpreter: IR on Python integers, one file per construct.

Expressions and actions become Python functions once, when the program is loaded; the rest is bound objects.
Behaviour is that of the behavioral model's simple_switch; where that one's is undefined, the module that
decides says what happens here.
"""
