# SPDX-License-Identifier: Apache-2.0
"""Compiler of programs to machine code, through LLVM. The code must do exactly what the interpreter does.

A program is written as LLVM's intermediate code (`program_code` and below), translated for this processor
(`compiler`) and run over shared memory (`memory_layout`). A construct that only the interpreter runs is refused by name
(`only_interpreted`).
"""
