# SPDX-License-Identifier: Apache-2.0
"""An embedded P4 switch: runs what p4c compiles for the v1model architecture.

`program` loads, `engine` runs, `state` is what the control plane writes; `p4runtime`, `ports` and `cli`
make a process of it. The engine knows nothing of the programs it runs.
"""
