// SPDX-License-Identifier: Apache-2.0
// LOOKUP_ADD8 and LOOKUP_ADD16: codes of 4 bits become lanes of 8 and 16 bits, by the job's table of 16 values.
// LOOKUP_ADD_LOOKUP4, LOOKUP_ADD_LOOKUP3 and LOOKUP_ADD_LOOKUP2: codes of 4, 3 and 2 bits become lanes of 8 bits, by a
// table of 16, 8 and 4 values in two's complement. Requantize looks up their sums.
//
// All lanes of a vector are looked up at once, by a polynomial over GF(2): value = c0 ^ c1 b0 ^ c2 b1 ^ c3 b1 b0 ^ c4 b2
// ... ^ c15 b3 b2 b1 b0, where b3 .. b0 are the code's bits. Horner's rule needs 15 times c ^ (d & mask of a bit). The
// coefficients come as action data, broadcast to all lanes: c_i is the exclusive or of the table's values at all j whose
// bits are among those of i. A table of 8 values has c0 to c7, and one of 4 has c0 to c3.
// A software switch pays more for an assignment to a wide variable than for a dozen operations: so masks that are used
// once or twice are not put into one.

// Bit `k` of every lane, widened to the lane. `low` has every lane's lowest bit, `high` its highest.
#define BIT_MASK(words, k, low, high) LANE_MASK((words >> k) & low, high)

#define POLYNOMIAL1(c, d) (c ^ (d & m0))
#define POLYNOMIAL2(c, d, e, f) (POLYNOMIAL1(c, d) ^ (POLYNOMIAL1(e, f) & m1))

// The codes are the bits of `words` whose lowest is bit `k` of their lane.
#define LOOKUP_VECTOR2(words, k, low, high, result) \
    m0 = BIT_MASK(words, (k + 0), low, high); \
    m1 = BIT_MASK(words, (k + 1), low, high); \
    result = POLYNOMIAL2(c0, c1, c2, c3);

// Bit 2 of the codes is bit `k2` of the lanes of `words2`.
#define LOOKUP_VECTOR3(words, k, words2, k2, low, high, result) \
    m0 = BIT_MASK(words, (k + 0), low, high); \
    m1 = BIT_MASK(words, (k + 1), low, high); \
    result = POLYNOMIAL2(c0, c1, c2, c3) ^ (POLYNOMIAL2(c4, c5, c6, c7) & BIT_MASK(words2, k2, low, high));

#define LOOKUP_VECTOR(words, k, low, high, result) \
    m0 = BIT_MASK(words, (k + 0), low, high); \
    m1 = BIT_MASK(words, (k + 1), low, high); \
    result = \
        (POLYNOMIAL2(c0, c1, c2, c3) ^ (POLYNOMIAL2(c4, c5, c6, c7) & BIT_MASK(words, (k + 2), low, high))) ^ \
        ((POLYNOMIAL2(c8, c9, c10, c11) ^ (POLYNOMIAL2(c12, c13, c14, c15) & BIT_MASK(words, (k + 2), low, high))) \
            & BIT_MASK(words, (k + 3), low, high));

#define TABLE_PARAMETERS2 vector_t c0, vector_t c1, vector_t c2, vector_t c3
#define TABLE_PARAMETERS3 TABLE_PARAMETERS2, vector_t c4, vector_t c5, vector_t c6, vector_t c7
#define TABLE_PARAMETERS \
    TABLE_PARAMETERS3, \
    vector_t c8, vector_t c9, vector_t c10, vector_t c11, vector_t c12, vector_t c13, vector_t c14, vector_t c15

control Lookup(inout headers_t hdr, inout metadata_t meta) {
    vector_t m0;
    vector_t m1;
    vector_t halves;
    vector_t high_bits;

    @brief("Coefficients of the table of LOOKUP_ADD8 or LOOKUP_ADD_LOOKUP4, in each 8-bit lane.")
    action load_table8(TABLE_PARAMETERS) {
        hdr.lanes.setValid();
        LOOKUP_VECTOR(hdr.codes8.group0, 4, LOW8, HIGH8, hdr.lanes.v0)
        LOOKUP_VECTOR(hdr.codes8.group0, 0, LOW8, HIGH8, hdr.lanes.v1)
        LOOKUP_VECTOR(hdr.codes8.group1, 4, LOW8, HIGH8, hdr.lanes.v2)
        LOOKUP_VECTOR(hdr.codes8.group1, 0, LOW8, HIGH8, hdr.lanes.v3)
        hdr.codes8.setInvalid();
    }
    @brief("Coefficients of the table of LOOKUP_ADD16, in each 16-bit lane.")
    action load_table16(TABLE_PARAMETERS) {
        hdr.lanes.setValid();
        LOOKUP_VECTOR(hdr.codes16.group0, 12, LOW16, HIGH16, hdr.lanes.v0)
        LOOKUP_VECTOR(hdr.codes16.group0, 8, LOW16, HIGH16, hdr.lanes.v1)
        LOOKUP_VECTOR(hdr.codes16.group0, 4, LOW16, HIGH16, hdr.lanes.v2)
        LOOKUP_VECTOR(hdr.codes16.group0, 0, LOW16, HIGH16, hdr.lanes.v3)
        hdr.codes16.setInvalid();
    }
    @brief("Coefficients of the table of LOOKUP_ADD_LOOKUP3, in each 8-bit lane.")
    action load_table3(TABLE_PARAMETERS3) {
        // The third quarter's codes, and the last one's high bits, are in bytes B: two of each in a byte. Here the first
        // half of the lanes has B in its own place, and the second half has it moved down to the same bits.
        halves = hdr.codes3.b ++ (hdr.codes3.b >> 3);
        high_bits = hdr.codes3.b ++ (hdr.codes3.b >> 1);
        hdr.lanes.setValid();
        LOOKUP_VECTOR3(hdr.codes3.a, 0, hdr.codes3.a, 2, LOW8, HIGH8, hdr.lanes.v0)
        LOOKUP_VECTOR3(hdr.codes3.a, 3, hdr.codes3.a, 5, LOW8, HIGH8, hdr.lanes.v1)
        LOOKUP_VECTOR3(halves, 0, halves, 2, LOW8, HIGH8, hdr.lanes.v2)
        LOOKUP_VECTOR3(hdr.codes3.a, 6, high_bits, 6, LOW8, HIGH8, hdr.lanes.v3)
        hdr.codes3.setInvalid();
    }
    @brief("Coefficients of the table of LOOKUP_ADD_LOOKUP2, in each 8-bit lane.")
    action load_table2(TABLE_PARAMETERS2) {
        hdr.lanes.setValid();
        LOOKUP_VECTOR2(hdr.codes2.a, 6, LOW8, HIGH8, hdr.lanes.v0)
        LOOKUP_VECTOR2(hdr.codes2.a, 4, LOW8, HIGH8, hdr.lanes.v1)
        LOOKUP_VECTOR2(hdr.codes2.a, 2, LOW8, HIGH8, hdr.lanes.v2)
        LOOKUP_VECTOR2(hdr.codes2.a, 0, LOW8, HIGH8, hdr.lanes.v3)
        hdr.codes2.setInvalid();
    }
    action no_table() { meta.drop_reason = DROP_NO_TABLE; }

    // An entry with the action of another op would look up lanes that are not there: builders never write one.
    @brief("Lookup tables of jobs; a code of a job without one is dropped as NO_TABLE.")
    table lookup {
        key = {
            hdr.hopsum.generation : exact @name("generation");
            hdr.hopsum.op         : exact @name("op");
        }
        actions = { load_table8; load_table16; load_table3; load_table2; @defaultonly no_table; }
        const default_action = no_table;
        size = 5 * MAX_JOBS;
    }

    // Codes of the parent's RESULT: a leaf keeps them as lanes (T8).
    action unpack() {
        hdr.lanes.setValid();
        hdr.lanes.v0 = (hdr.codes8.group0 >> 4) & NIBBLE8;
        hdr.lanes.v1 = hdr.codes8.group0 & NIBBLE8;
        hdr.lanes.v2 = (hdr.codes8.group1 >> 4) & NIBBLE8;
        hdr.lanes.v3 = hdr.codes8.group1 & NIBBLE8;
        hdr.codes8.setInvalid();
    }

    apply {
        if (hdr.hopsum.kind == KIND_UPDATE) {
            if (hdr.codes8.isValid() || hdr.codes16.isValid() || hdr.codes3.isValid() || hdr.codes2.isValid()) {
                lookup.apply();
            }
        } else if (hdr.codes8.isValid()) {
            unpack();
        }
    }
}
