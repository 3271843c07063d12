// SPDX-License-Identifier: Apache-2.0
// The values of a slot copy the obvious way: a register for each of the 1024 lanes.

const bit<32> NAIVE_COPIES = 256;       // 128 slots: a software switch pays tens of bytes for a cell

control Aggregate(inout headers_t hdr, in metadata_t meta) {
#define LANE_FILE "sum_register.p4"
#include "lanes.p4"

    apply {
        if (meta.operation == OPERATION_WRITE) {
#define LANE_FILE "sum_write.p4"
#include "lanes.p4"
        } else if (meta.operation == OPERATION_ADD) {
#define LANE_FILE "sum_add.p4"
#include "lanes.p4"
        } else if (meta.operation == OPERATION_READ) {
#define LANE_FILE "sum_read.p4"
#include "lanes.p4"
        }
    }
}
