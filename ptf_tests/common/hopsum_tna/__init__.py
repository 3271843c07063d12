# SPDX-License-Identifier: Apache-2.0
"""Executor of the output of p4c-barefoot's front end: a test instrument that knows TNA, and no protocol.

    dump      the compiler's JSON as in p4/build/tna: references resolved, source positions left out
    record_layout    types: headers, and the widths of fields
    tna_expressions  expressions                       }
    statements       statements                        } nodes of the dump -> Python functions on one packet's fields
    tna_block        declarations, calls, parser states }
    tna_tables       tables and their entries
    externs          registers, counters, hashes, checksums
    half             ingress or egress: parser, control, deparser
    tna_switch       pipes, ports, replication, queues, the wires of recirculation ports

An unsupported construct is refused by name when the program is loaded, not when a packet meets it.
"""
