// SPDX-License-Identifier: Apache-2.0
// LOOKUP_ADD8: 1024 codes of 4 bits become 1024 lanes of 8 bits, by the job's table of 16 values.
//
// All 256 lanes of a vector are looked up at once. Each of a code's four bits is widened to a whole-lane mask,
// (b << 8) - b, which is 0xff where b = 1; a tree of 15 two-way selections then picks the value. The table comes as
// action data, broadcast to all lanes: t_i holds value i in every lane and x_i = t_i ^ t_(i+1), so that
// t_i ^ (x_i & mask) selects between neighbours.
// One expression per vector, and all in one action: a software switch pays for every assignment and every table.

// Mask of bit `k` of every byte; `b` is scratch.
#define BIT_MASK(mask, bytes, k) b = (bytes >> k) & LOW8; mask = (b << 8) - b;

// 16-way selection by the masks m0 (lowest bit) .. m3; n1 .. n3 are their complements.
#define SELECT2(t, x) (t ^ (x & m0))
#define SELECT4(ta, xa, tb, xb) ((SELECT2(ta, xa) & n1) | (SELECT2(tb, xb) & m1))
#define SELECT16 \
    (((SELECT4(t0, x0, t2, x2) & n2) | (SELECT4(t4, x4, t6, x6) & m2)) & n3) | \
    (((SELECT4(t8, x8, t10, x10) & n2) | (SELECT4(t12, x12, t14, x14) & m2)) & m3)

// The codes are the nibbles of `bytes` whose lowest bit is bit `k` of their byte.
#define LOOKUP_VECTOR(bytes, k, lanes) \
    BIT_MASK(m0, bytes, (k + 0)) BIT_MASK(m1, bytes, (k + 1)) BIT_MASK(m2, bytes, (k + 2)) BIT_MASK(m3, bytes, (k + 3)) \
    n1 = ~m1; n2 = ~m2; n3 = ~m3; \
    lanes = SELECT16;

control Lookup(inout headers_t hdr, inout metadata_t meta) {
    action load_table(vector_t t0, vector_t x0, vector_t t2, vector_t x2, vector_t t4, vector_t x4,
                      vector_t t6, vector_t x6, vector_t t8, vector_t x8, vector_t t10, vector_t x10,
                      vector_t t12, vector_t x12, vector_t t14, vector_t x14) {
        vector_t b;
        vector_t m0; vector_t m1; vector_t m2; vector_t m3;
        vector_t n1; vector_t n2; vector_t n3;
        hdr.lanes.setValid();
        LOOKUP_VECTOR(hdr.codes.group0, 4, hdr.lanes.v0)
        LOOKUP_VECTOR(hdr.codes.group0, 0, hdr.lanes.v1)
        LOOKUP_VECTOR(hdr.codes.group1, 4, hdr.lanes.v2)
        LOOKUP_VECTOR(hdr.codes.group1, 0, hdr.lanes.v3)
        hdr.codes.setInvalid();
    }
    action no_table() { meta.drop_reason = DROP_NO_TABLE; }

    table lookup {
        key = { hdr.hopsum.epoch : exact @name("epoch"); }
        actions = { load_table; @defaultonly no_table; }
        const default_action = no_table;
        size = MAX_JOBS;
    }

    apply {
        if (hdr.hopsum.op == OP_LOOKUP_ADD8) {
            lookup.apply();
        }
    }
}
