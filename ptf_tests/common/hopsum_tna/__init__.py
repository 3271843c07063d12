# SPDX-License-Identifier: Apache-2.0
"""Executes what p4c-barefoot's front end made of a TNA program: a test instrument that knows TNA, and no protocol.

    dump      the compiler's JSON: references resolved, source positions left out; as p4/build/tna holds it
    layout    types: what is a header, and how wide is a field
    values    expressions                    }
    actions   statements                     } nodes of the dump -> Python functions on one packet's fields
    parse     parser states                  }
    tables    tables and their entries
    externs   registers, counters, hashes, checksums
    half      ingress or egress: parser, control, deparser
    switch    ports, replication, the recirculation port's two queues

What is not supported is refused by name when the program is loaded, not when a packet meets it.
"""
