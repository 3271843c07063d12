// SPDX-License-Identifier: Apache-2.0
// Packed results: the operation that v1model's program has beside those of constants.p4. Tofino's has it not and does
// not include this file.

#ifndef HOPSUM_PACKED_P4
#define HOPSUM_PACKED_P4

// ---- packed results ---------------------------------------------------------------------------------
// op
const bit<8>  OP_LOOKUP_ADD6    = 8;        // 1024 4-bit codes up, looked up; 1024 lanes of up to 63 down, 6 bits each

// payload sizes
const bit<16> PACKED_BYTES      = 768;      // LOOKUP_ADD6: 1024 x 6 bits in RESULT; PARTIAL has LANES_BYTES
// Order of packed lanes. In a RESULT of LOOKUP_ADD6 lanes 0 to 767 are the low 6 bits of the bytes 0 to 767. Lane 768 + j lies in the high 2 bits
// of the bytes j, 256 + j and 512 + j, its lowest bits first. So shifts and masks of whole vectors pack and unpack.
const bit<16> PACKED_LANE_BITS  = 6;        // of a lane in RESULT of LOOKUP_ADD6

#endif
