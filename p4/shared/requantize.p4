// SPDX-License-Identifier: Apache-2.0
// Results that are codes again: the operations that v1model's program has beside those of constants.p4. Tofino's has them
// not and does not include this file.

#ifndef HOPSUM_REQUANTIZE_P4
#define HOPSUM_REQUANTIZE_P4

// ---- results that are codes ---------------------------------------------------------------------------
// op
const bit<8>  OP_LOOKUP_ADD_LOOKUP4 = 9;    // 1024 4-bit codes up, looked up; the sums looked up again: 1024 4-bit codes down
const bit<8>  OP_LOOKUP_ADD_LOOKUP3 = 10;   // 1024 3-bit codes up and down
const bit<8>  OP_LOOKUP_ADD_LOOKUP2 = 11;   // 1024 2-bit codes up and down
const bit<8>  RETIRED_OP        = 8;        // was LOOKUP_ADD6, results of 6 bits: refused as BAD_OP, and never used again

// payload sizes, in UPDATE and RESULT; PARTIAL has LANES_BYTES. LOOKUP_ADD_LOOKUP4: CODES8_BYTES, in the order of LOOKUP_ADD8.
const bit<16> CODES3_BYTES      = 384;      // LOOKUP_ADD_LOOKUP3: 1024 codes of 3 bits
const bit<16> CODES2_BYTES      = 256;      // LOOKUP_ADD_LOOKUP2: 1024 codes of 2 bits
// Order of codes of 2 bits. Byte j holds, from its highest bits down, the codes j, 256 + j, 512 + j and 768 + j.
// Order of codes of 3 bits. They are 256 bytes A and 128 bytes B. A[j] holds the codes j in its bits 2 to 0 and 256 + j in
// its bits 5 to 3, B[j] the codes 512 + j and 640 + j likewise. The low two bits of code 768 + j are the bits 7 to 6 of
// A[j]. Its high bit is bit 6 of B[j], or from code 896 on bit 7 of B[j - 128].
// So shifts and masks of whole vectors pack and unpack.

#endif
