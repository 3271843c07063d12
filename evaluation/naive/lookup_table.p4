// SPDX-License-Identifier: Apache-2.0
    action NAME(set)(bit<8> value) {
        hdr.lanes.NAME(l) = value;
    }
    table NAME(lookup) {
        key = {
            hdr.hopsum.generation : exact @name("generation");
            hdr.codes8.NAME(c) : exact @name("code");
        }
        actions = { NAME(set); @defaultonly no_table; }
        const default_action = no_table;
        size = (bit<16>) TABLE_ENTRIES * MAX_JOBS;
    }
