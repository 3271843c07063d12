// SPDX-License-Identifier: Apache-2.0
// LOOKUP_ADD8 the obvious way: a table for each of the 1024 codes.

control Lookup(inout headers_t hdr, inout metadata_t meta) {
    action no_table() { meta.drop_reason = DROP_NO_TABLE; }
#define LANE_FILE "lookup_table.p4"
#include "lanes.p4"

    apply {
        hdr.lanes.setValid();
#define LANE_FILE "lookup_apply.p4"
#include "lanes.p4"
        hdr.codes8.setInvalid();
    }
}
