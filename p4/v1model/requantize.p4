// SPDX-License-Identifier: Apache-2.0
// LOOKUP_ADD_LOOKUP4, LOOKUP_ADD_LOOKUP3 and LOOKUP_ADD_LOOKUP2: sums are looked up again, and a RESULT carries codes of
// 4, 3 or 2 bits. Slots, and PARTIAL in a tree, hold the sums in lanes of 8 bits, in two's complement. So each RESULT of a
// round is made anew from the held sum, and a repeated one has equal bytes (S9).
//
// The code of a sum is the number of the job's thresholds that are at most the upper seven bits of the biased sum,
// (sum + 128) >> 1. The bits of the code are found one after the other, the highest first, as in a binary tree: each is a
// comparison with one threshold, which the bits found so far choose. A polynomial over GF(2) chooses it in all lanes at
// once, as in lookup.p4. With b bits the level l (from 0) of the tree has the thresholds (2 j + 1) 2^(b - 1 - l), counted
// from 1, for the bits j found so far. The parameters t_(2^l - 1) and up are the coefficients of this level, of
// 128 - threshold: t_(2^l - 1 + i) is the exclusive or of these at all j whose bits are among those of i.
//
// Only the root looks sums up again. A leaf stores the codes that its parent sends as lanes, and packs them (T8).

// 128 in the lanes where the sum is at least the threshold. Both are below 128: nothing is carried from lane to lane.
#define IS_AT_LEAST(threshold) ((sum + ((threshold) & ~HIGH8)) & HIGH8)
#define FOUND_MASK(found) LANE_MASK(found >> 7, HIGH8)

#define CHOOSE1(c, d) (c ^ (d & mask1))
#define CHOOSE2(c, d, e, f) ((c ^ (d & mask2)) ^ ((e ^ (f & mask2)) & mask1))
#define CHOOSE2_OF_3(c, d, e, f) ((c ^ (d & mask3)) ^ ((e ^ (f & mask3)) & mask2))

#define FIND1(lanes) \
    sum = ((lanes ^ HIGH8) >> 1) & ~HIGH8; \
    bit1 = IS_AT_LEAST(t0);
#define FIND2(lanes) \
    FIND1(lanes) \
    mask1 = FOUND_MASK(bit1); \
    bit2 = IS_AT_LEAST(CHOOSE1(t1, t2));
#define FIND3(lanes) \
    FIND2(lanes) \
    mask2 = FOUND_MASK(bit2); \
    bit3 = IS_AT_LEAST(CHOOSE2(t3, t4, t5, t6));
#define FIND4(lanes) \
    FIND3(lanes) \
    mask3 = FOUND_MASK(bit3); \
    bit4 = IS_AT_LEAST(CHOOSE2_OF_3(t7, t8, t9, t10) ^ (CHOOSE2_OF_3(t11, t12, t13, t14) & mask1));

// The bits found, side by side: the first one is moved down by `shift` bits from the top of its lane.
#define CODES2(shift) ((bit1 >> shift) | (bit2 >> (shift + 1)))
#define CODES3(shift) (CODES2(shift) | (bit3 >> (shift + 2)))
#define CODES4(shift) (CODES3(shift) | (bit4 >> (shift + 3)))

#define THRESHOLDS2 vector_t t0, vector_t t1, vector_t t2
#define THRESHOLDS3 THRESHOLDS2, vector_t t3, vector_t t4, vector_t t5, vector_t t6
#define THRESHOLDS4 \
    THRESHOLDS3, vector_t t7, vector_t t8, vector_t t9, vector_t t10, vector_t t11, vector_t t12, vector_t t13, vector_t t14

control Requantize(inout headers_t hdr, inout metadata_t meta) {
    vector_t sum;
    vector_t bit1;
    vector_t bit2;
    vector_t bit3;
    vector_t bit4;
    vector_t mask1;
    vector_t mask2;
    vector_t mask3;
    vector_t high_bits;

    @brief("Coefficients of the 15 thresholds of LOOKUP_ADD_LOOKUP4, in each 8-bit lane.")
    action load_thresholds4(THRESHOLDS4) {
        hdr.hopsum.length = CODES8_BYTES;
        hdr.codes8.setValid();
        FIND4(hdr.lanes.v0)
        hdr.codes8.group0 = CODES4(0);
        FIND4(hdr.lanes.v1)
        hdr.codes8.group0 = hdr.codes8.group0 | CODES4(4);
        FIND4(hdr.lanes.v2)
        hdr.codes8.group1 = CODES4(0);
        FIND4(hdr.lanes.v3)
        hdr.codes8.group1 = hdr.codes8.group1 | CODES4(4);
        hdr.lanes.setInvalid();
    }
    @brief("Coefficients of the 7 thresholds of LOOKUP_ADD_LOOKUP3, in each 8-bit lane.")
    action load_thresholds3(THRESHOLDS3) {
        hdr.hopsum.length = CODES3_BYTES;
        hdr.codes3.setValid();
        FIND3(hdr.lanes.v0)
        hdr.codes3.a = CODES3(5);
        FIND3(hdr.lanes.v1)
        hdr.codes3.a = hdr.codes3.a | CODES3(2);
        // The last quarter: its high bits go to the bits 6 and 7 of the bytes B, the others to the top of the bytes A.
        FIND3(hdr.lanes.v3)
        hdr.codes3.a = hdr.codes3.a | (bit2 | (bit3 >> 1));
        high_bits = bit1;
        FIND3(hdr.lanes.v2)
        hdr.codes3.b = (CODES3(5))[2047:1024] | (CODES3(2))[1023:0] | (high_bits[2047:1024] >> 1) | high_bits[1023:0];
        hdr.lanes.setInvalid();
    }
    @brief("Coefficients of the 3 thresholds of LOOKUP_ADD_LOOKUP2, in each 8-bit lane.")
    action load_thresholds2(THRESHOLDS2) {
        hdr.hopsum.length = CODES2_BYTES;
        hdr.codes2.setValid();
        FIND2(hdr.lanes.v0)
        hdr.codes2.a = CODES2(0);
        FIND2(hdr.lanes.v1)
        hdr.codes2.a = hdr.codes2.a | CODES2(2);
        FIND2(hdr.lanes.v2)
        hdr.codes2.a = hdr.codes2.a | CODES2(4);
        FIND2(hdr.lanes.v3)
        hdr.codes2.a = hdr.codes2.a | CODES2(6);
        hdr.lanes.setInvalid();
    }
    action no_table() { meta.drop_reason = DROP_NO_TABLE; }

    // An entry with the action of another op would make codes of another size: builders never write one.
    @brief("Thresholds of jobs; a RESULT of a job without them is dropped as NO_TABLE.")
    table requantize {
        key = {
            hdr.hopsum.generation : exact @name("generation");
            hdr.hopsum.op         : exact @name("op");
        }
        actions = { load_thresholds4; load_thresholds3; load_thresholds2; @defaultonly no_table; }
        const default_action = no_table;
        size = 3 * MAX_JOBS;
    }

    // A leaf's lanes are the codes of its parent's RESULT (T8). Of these operations trees have LOOKUP_ADD_LOOKUP4 alone.
    action pack() {
        hdr.hopsum.length = CODES8_BYTES;
        hdr.codes8.setValid();
        hdr.codes8.group0 = (hdr.lanes.v0 << 4) | hdr.lanes.v1;
        hdr.codes8.group1 = (hdr.lanes.v2 << 4) | hdr.lanes.v3;
        hdr.lanes.setInvalid();
    }

    apply {
        if (hdr.hopsum.op >= OP_LOOKUP_ADD_LOOKUP4 && (meta.reply == REPLY_RESULT || meta.reply == REPLY_ANSWER)) {
            if (meta.has_parent == 1) {
                pack();
            } else {
                requantize.apply();
            }
        }
    }
}
