// SPDX-License-Identifier: Apache-2.0
// LOOKUP_ADD8 and LOOKUP_ADD16: codes of 4 bits become lanes of 8 or 16 bits, by the job's table of 16 values.
//
// All lanes of a vector are looked up at once. Each of a code's four bits is widened to a whole-lane mask,
// (b << lane bits) - b, which is all ones where b = 1; a tree of 15 two-way selections then picks the value. The table
// comes as action data, broadcast to all lanes: t_i holds value i in every lane and x_i = t_i ^ t_(i+1), so that
// t_i ^ (x_i & mask) selects between neighbours.
// One expression per vector, and all in one action: a software switch pays for every assignment and every table.

// Mask of bit `k` of every lane of `bits` bits; `low` has the lowest bit of every lane, `b` is scratch.
#define BIT_MASK(mask, words, k, bits, low) b = (words >> k) & low; mask = (b << bits) - b;

// 16-way selection by the masks m0 (lowest bit) .. m3; n1 .. n3 are their complements.
#define SELECT2(t, x) (t ^ (x & m0))
#define SELECT4(ta, xa, tb, xb) ((SELECT2(ta, xa) & n1) | (SELECT2(tb, xb) & m1))
#define SELECT16 \
    (((SELECT4(t0, x0, t2, x2) & n2) | (SELECT4(t4, x4, t6, x6) & m2)) & n3) | \
    (((SELECT4(t8, x8, t10, x10) & n2) | (SELECT4(t12, x12, t14, x14) & m2)) & m3)

// The codes are the nibbles of `words` whose lowest bit is bit `k` of their lane.
#define LOOKUP_VECTOR(words, k, bits, low, result) \
    BIT_MASK(m0, words, (k + 0), bits, low) BIT_MASK(m1, words, (k + 1), bits, low) \
    BIT_MASK(m2, words, (k + 2), bits, low) BIT_MASK(m3, words, (k + 3), bits, low) \
    n1 = ~m1; n2 = ~m2; n3 = ~m3; \
    result = SELECT16;

#define TABLE_PARAMETERS \
    vector_t t0, vector_t x0, vector_t t2, vector_t x2, vector_t t4, vector_t x4, vector_t t6, vector_t x6, \
    vector_t t8, vector_t x8, vector_t t10, vector_t x10, vector_t t12, vector_t x12, vector_t t14, vector_t x14

control Lookup(inout headers_t hdr, inout metadata_t meta) {
    action load_table8(TABLE_PARAMETERS) {
        vector_t b;
        vector_t m0; vector_t m1; vector_t m2; vector_t m3;
        vector_t n1; vector_t n2; vector_t n3;
        hdr.lanes.setValid();
        LOOKUP_VECTOR(hdr.codes8.group0, 4, 8, LOW8, hdr.lanes.v0)
        LOOKUP_VECTOR(hdr.codes8.group0, 0, 8, LOW8, hdr.lanes.v1)
        LOOKUP_VECTOR(hdr.codes8.group1, 4, 8, LOW8, hdr.lanes.v2)
        LOOKUP_VECTOR(hdr.codes8.group1, 0, 8, LOW8, hdr.lanes.v3)
        hdr.codes8.setInvalid();
    }
    action load_table16(TABLE_PARAMETERS) {
        vector_t b;
        vector_t m0; vector_t m1; vector_t m2; vector_t m3;
        vector_t n1; vector_t n2; vector_t n3;
        hdr.lanes.setValid();
        LOOKUP_VECTOR(hdr.codes16.group0, 12, 16, LOW16, hdr.lanes.v0)
        LOOKUP_VECTOR(hdr.codes16.group0, 8, 16, LOW16, hdr.lanes.v1)
        LOOKUP_VECTOR(hdr.codes16.group0, 4, 16, LOW16, hdr.lanes.v2)
        LOOKUP_VECTOR(hdr.codes16.group0, 0, 16, LOW16, hdr.lanes.v3)
        hdr.codes16.setInvalid();
    }
    action no_table() { meta.drop_reason = DROP_NO_TABLE; }

    // An entry with the action of the other op would look up lanes that are not there: builders never write one.
    table lookup {
        key = {
            hdr.hopsum.epoch : exact @name("epoch");
            hdr.hopsum.op    : exact @name("op");
        }
        actions = { load_table8; load_table16; @defaultonly no_table; }
        const default_action = no_table;
        size = 2 * MAX_JOBS;
    }

    apply {
        if (hdr.codes8.isValid() || hdr.codes16.isValid()) {
            lookup.apply();
        }
    }
}
