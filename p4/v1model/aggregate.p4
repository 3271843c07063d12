// SPDX-License-Identifier: Apache-2.0
// The values of a slot copy: written, combined or read as Slot decided, and put into the packet.
//
// Lanes never carry into each other. Lanes of width w are added with their top bits masked away; a top bit is then
// the exclusive or of both and the carry that arrived from below: (a & ~H) + (b & ~H) ^ ((a ^ b) & H).
// MAX32 compares 31-bit lanes: (a | H) - b keeps H set exactly where a >= b and borrows from no neighbour.

#define ADD_LANES(high, lanes) lanes = ((held & ~high) + (lanes & ~high)) ^ ((held ^ lanes) & high);
#define ADD8(lanes)  ADD_LANES(HIGH8, lanes)
#define ADD16(lanes) ADD_LANES(HIGH16, lanes)
#define ADD32(lanes) ADD_LANES(HIGH32, lanes)
#define OR(lanes)    lanes = held | lanes;
#define NOT_LESS(lanes) ((((held | HIGH32) - lanes) & HIGH32) >> 31)    /* 1 where held >= lanes */
#define MAX32(lanes) lanes = lanes ^ ((held ^ lanes) & LANE_MASK(NOT_LESS(lanes), HIGH32));

// All four vectors of a copy, one after the other, in one action: a software switch pays for every table and condition.
#define COMBINE_VECTOR(combine, values, lanes) \
    values.read(held, meta.slot_index); \
    combine(lanes) \
    values.write(meta.slot_index, lanes);
#define COMBINE(combine) { \
    COMBINE_VECTOR(combine, values0, hdr.lanes.v0) \
    COMBINE_VECTOR(combine, values1, hdr.lanes.v1) \
    COMBINE_VECTOR(combine, values2, hdr.lanes.v2) \
    COMBINE_VECTOR(combine, values3, hdr.lanes.v3) \
}

control Aggregate(inout headers_t hdr, in metadata_t meta) {
    @brief("Lanes of a copy: the first quarter.")
    register<vector_t>(COPIES) values0;
    @brief("Lanes of a copy: the second quarter.")
    register<vector_t>(COPIES) values1;
    @brief("Lanes of a copy: the third quarter.")
    register<vector_t>(COPIES) values2;
    @brief("Lanes of a copy: the last quarter.")
    register<vector_t>(COPIES) values3;
    vector_t held;

    action write() {
        values0.write(meta.slot_index, hdr.lanes.v0);
        values1.write(meta.slot_index, hdr.lanes.v1);
        values2.write(meta.slot_index, hdr.lanes.v2);
        values3.write(meta.slot_index, hdr.lanes.v3);
    }
    action read() {
        values0.read(hdr.lanes.v0, meta.slot_index);
        values1.read(hdr.lanes.v1, meta.slot_index);
        values2.read(hdr.lanes.v2, meta.slot_index);
        values3.read(hdr.lanes.v3, meta.slot_index);
    }
    action add8()  COMBINE(ADD8)
    action add16() COMBINE(ADD16)
    action add32() COMBINE(ADD32)
    action or()    COMBINE(OR)
    action max32() COMBINE(MAX32)

    apply {
        if (meta.operation == OPERATION_WRITE) {
            write();
        } else if (meta.operation == OPERATION_READ) {
            read();
        } else if (meta.operation == OPERATION_ADD) {
            if (hdr.hopsum.op == OP_LOOKUP_ADD8 || hdr.hopsum.op == OP_ADD8
                || hdr.hopsum.op >= OP_LOOKUP_ADD_LOOKUP4) {    // LOOKUP_ADD_LOOKUP4, 3 and 2
                add8();
            } else if (hdr.hopsum.op == OP_LOOKUP_ADD16 || hdr.hopsum.op == OP_ADD16) {
                add16();
            } else if (hdr.hopsum.op == OP_ADD32) {
                add32();
            } else if (hdr.hopsum.op == OP_OR) {
                or();
            } else {                                            // OP_MAX32
                max32();
            }
        }
    }
}
