# SPDX-License-Identifier: Apache-2.0
"""An embedded P4 switch for programs that p4c compiles for the v1model architecture.

`program` loads a program, `engine` runs it, and `state` has the entries of the control plane. `p4runtime`, `ports` and
`cli` make a switch process. The engine has no code for any particular program.
"""
