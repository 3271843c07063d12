# SPDX-License-Identifier: Apache-2.0
"""Programs as machine code, through LLVM; it must do exactly what the interpreter does.

A program is written as LLVM's intermediate code (`pipeline` and below), translated for this processor
(`compiler`) and run over shared memory (`layout`). What only the interpreter runs is refused by name
(`unsupported`).
"""
