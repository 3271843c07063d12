// SPDX-License-Identifier: Apache-2.0
// The values of a slot copy: written, combined or read as Slot decided, and put into the packet.
//
// Lanes never carry into each other. Lanes of width w are added with their top bits masked away; a top bit is then
// the exclusive or of both and the carry that arrived from below: (a & ~H) + (b & ~H) ^ ((a ^ b) & H).
// MAX32 compares 31-bit lanes: (a | H) - b keeps H set exactly where a >= b and borrows from no neighbour.

#define ADD_LANES(high) ((held & ~high) + (lanes & ~high)) ^ ((held ^ lanes) & high)

control Combine(in bit<8> op, in vector_t held, inout vector_t lanes) {
    vector_t ge;
    apply {
        if (op == OP_LOOKUP_ADD8 || op == OP_ADD8) {
            lanes = ADD_LANES(HIGH8);
        } else if (op == OP_LOOKUP_ADD16 || op == OP_ADD16) {
            lanes = ADD_LANES(HIGH16);
        } else if (op == OP_ADD32) {
            lanes = ADD_LANES(HIGH32);
        } else if (op == OP_OR) {
            lanes = held | lanes;
        } else {                                                // OP_MAX32
            ge = ((held | HIGH32) - lanes) & HIGH32;            // top bit where held >= lanes
            ge = ge - (ge >> 31) | ge;                          // widened to the lane
            lanes = lanes ^ ((held ^ lanes) & ge);
        }
    }
}

// One vector of all copies.
control Values(in metadata_t meta, in bit<8> op, inout vector_t lanes) {
    register<vector_t>(COPIES) values;
    Combine() combine;
    vector_t held;

    apply {
        if (meta.operation == OPERATION_WRITE) {
            values.write(meta.copy, lanes);
        } else {
            values.read(held, meta.copy);
            if (meta.operation == OPERATION_ADD) {
                combine.apply(op, held, lanes);
                values.write(meta.copy, lanes);
            } else {
                lanes = held;
            }
        }
    }
}

control Aggregate(inout headers_t hdr, in metadata_t meta) {
    Values() vector0;
    Values() vector1;
    Values() vector2;
    Values() vector3;

    apply {
        if (meta.operation != OPERATION_NONE) {
            vector0.apply(meta, hdr.hopsum.op, hdr.lanes.v0);
            vector1.apply(meta, hdr.hopsum.op, hdr.lanes.v1);
            vector2.apply(meta, hdr.hopsum.op, hdr.lanes.v2);
            vector3.apply(meta, hdr.hopsum.op, hdr.lanes.v3);
        }
    }
}
