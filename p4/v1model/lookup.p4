// SPDX-License-Identifier: Apache-2.0
// LOOKUP_ADD8, LOOKUP_ADD16 and LOOKUP_ADD6: codes of 4 bits become lanes of 8, 16 and again 8 bits, by the job's table
// of 16 values.
//
// All lanes of a vector are looked up at once, by a polynomial over GF(2): value = c0 ^ c1 b0 ^ c2 b1 ^ c3 b1 b0 ^ c4 b2
// ... ^ c15 b3 b2 b1 b0, where b3 .. b0 are the code's bits. Horner's rule needs 15 times c ^ (d & mask of a bit). The
// coefficients come as action data, broadcast to all lanes: c_i is the exclusive or of the table's values at all j whose
// bits are among those of i.
// A software switch pays more for an assignment to a wide variable than for a dozen operations: so masks that are used
// once or twice are not put into one.

// Bit `k` of every lane, widened to the lane. `low` has every lane's lowest bit, `high` its highest.
#define BIT_MASK(words, k, low, high) LANE_MASK((words >> k) & low, high)

#define POLYNOMIAL1(c, d) (c ^ (d & m0))
#define POLYNOMIAL2(c, d, e, f) (POLYNOMIAL1(c, d) ^ (POLYNOMIAL1(e, f) & m1))

// The codes are the nibbles of `words` whose lowest bit is bit `k` of their lane.
#define LOOKUP_VECTOR(words, k, low, high, result) \
    m0 = BIT_MASK(words, (k + 0), low, high); \
    m1 = BIT_MASK(words, (k + 1), low, high); \
    result = \
        (POLYNOMIAL2(c0, c1, c2, c3) ^ (POLYNOMIAL2(c4, c5, c6, c7) & BIT_MASK(words, (k + 2), low, high))) ^ \
        ((POLYNOMIAL2(c8, c9, c10, c11) ^ (POLYNOMIAL2(c12, c13, c14, c15) & BIT_MASK(words, (k + 2), low, high))) \
            & BIT_MASK(words, (k + 3), low, high));

#define TABLE_PARAMETERS \
    vector_t c0, vector_t c1, vector_t c2, vector_t c3, vector_t c4, vector_t c5, vector_t c6, vector_t c7, \
    vector_t c8, vector_t c9, vector_t c10, vector_t c11, vector_t c12, vector_t c13, vector_t c14, vector_t c15

control Lookup(inout headers_t hdr, inout metadata_t meta) {
    vector_t m0;
    vector_t m1;

    @brief("Coefficients of the table of LOOKUP_ADD8 or LOOKUP_ADD6, in each 8-bit lane.")
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
    action no_table() { meta.drop_reason = DROP_NO_TABLE; }

    // An entry with the action of the other op would look up lanes that are not there: builders never write one.
    @brief("Lookup tables of jobs; a code of a job without one is dropped as NO_TABLE.")
    table lookup {
        key = {
            hdr.hopsum.generation : exact @name("generation");
            hdr.hopsum.op         : exact @name("op");
        }
        actions = { load_table8; load_table16; @defaultonly no_table; }
        const default_action = no_table;
        size = 3 * MAX_JOBS;
    }

    apply {
        if (hdr.codes8.isValid() || hdr.codes16.isValid()) {
            lookup.apply();
        }
    }
}
