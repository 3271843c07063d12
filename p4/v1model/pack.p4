// SPDX-License-Identifier: Apache-2.0
// Packed results of LOOKUP_ADD6: four vectors of lanes of up to 63 travel in three. Every lane of the last vector gives
// two bits to the top of its neighbours in the other three. The control plane proves that no lane exceeds 63 (workers
// times granularity), so nothing is masked here.
// Only RESULT is packed. Slots, and PARTIAL in a tree, hold lanes of 8 bits; a leaf unpacks what its parent sends.

control Pack(inout headers_t hdr, in metadata_t meta) {
    action pack() {
        hdr.packed.setValid();
        hdr.packed.v0 = hdr.lanes.v0 | ((hdr.lanes.v3 << 6) & TOP2);
        hdr.packed.v1 = hdr.lanes.v1 | ((hdr.lanes.v3 << 4) & TOP2);
        hdr.packed.v2 = hdr.lanes.v2 | ((hdr.lanes.v3 << 2) & TOP2);
        hdr.lanes.setInvalid();
    }

    apply {
        if (hdr.hopsum.op == OP_LOOKUP_ADD6 && (meta.reply == REPLY_RESULT || meta.reply == REPLY_ANSWER)) {
            pack();
        }
    }
}

control Unpack(inout headers_t hdr) {
    action unpack() {
        hdr.lanes.setValid();
        hdr.lanes.v0 = hdr.packed.v0 & ~TOP2;
        hdr.lanes.v1 = hdr.packed.v1 & ~TOP2;
        hdr.lanes.v2 = hdr.packed.v2 & ~TOP2;
        hdr.lanes.v3 = ((hdr.packed.v0 & TOP2) >> 6) | ((hdr.packed.v1 & TOP2) >> 4) | ((hdr.packed.v2 & TOP2) >> 2);
        hdr.packed.setInvalid();
    }

    apply {
        if (hdr.packed.isValid()) {
            unpack();
        }
    }
}
