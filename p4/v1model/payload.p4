// SPDX-License-Identifier: Apache-2.0
// Payload headers, the header and metadata structs, and lane constants of the v1model program.
// A payload is cut into vectors of 2048 bits, the widest that p4c allows.

#ifndef HOPSUM_PAYLOAD_P4
#define HOPSUM_PAYLOAD_P4

#include "../shared/constants.p4"
#include "../shared/requantize.p4"
#include "../shared/headers.p4"

typedef bit<2048> vector_t;             // 256 lanes of 8 bits, 128 of 16 or 64 of 32
typedef bit<1024> half_vector_t;

header codes8_h {                       // CODES8_BYTES: two groups of LANE_GROUP_CODES codes of 4 bits
    vector_t group0;
    vector_t group1;
}

header codes16_h {                      // CODES16_BYTES: one group
    vector_t group0;
}

header codes3_h {                       // CODES3_BYTES: codes of 3 bits
    vector_t      a;
    half_vector_t b;
}

header codes2_h {                       // CODES2_BYTES: codes of 2 bits
    vector_t a;
}

header lanes_h {                        // LANES_BYTES
    vector_t v0;
    vector_t v1;
    vector_t v2;
    vector_t v3;
}

struct headers_t {
    ethernet_h ethernet;
    arp_h      arp;
    ipv4_h     ipv4;
    icmp_h     icmp;
    udp_h      udp;
    hopsum_h   hopsum;
    codes8_h   codes8;
    codes16_h  codes16;
    codes3_h   codes3;
    codes2_h   codes2;
    lanes_h    lanes;
}

// What Address found.
const bit<2> DESTINATION_OTHER    = 0;  // a plain frame
const bit<2> DESTINATION_SERVICE  = 1;  // for this switch's aggregation service
const bit<2> DESTINATION_ANSWERED = 2;  // ARP or echo request for this switch: already turned into its reply

// What the slot's decision tells the controls after it.
const bit<8> OPERATION_NONE  = 0;       // leave the copy's values alone
const bit<8> OPERATION_WRITE = 1;       // values := this packet's lanes
const bit<8> OPERATION_ADD   = 2;       // values := values (op) this packet's lanes
const bit<8> OPERATION_READ  = 3;       // values only go into the packet

const bit<8> REPLY_NONE      = 0;       // nothing leaves the switch
const bit<8> REPLY_RESULT    = 1;       // RESULT to all children of the job
const bit<8> REPLY_ANSWER    = 2;       // RESULT to the sender alone
const bit<8> REPLY_STALE     = 3;       // STALE to the sender alone
const bit<8> REPLY_STATE     = 4;       // STATE to the sender alone
const bit<8> REPLY_PARTIAL   = 5;       // PARTIAL to the parent
const bit<8> REPLY_RELAY     = 6;       // the parent's STALE to all children of the job

struct metadata_t {
    bit<2>   destination;               // DESTINATION_*
    bit<1>   flood;                     // plain frame to all ports but its own
    bit<1>   new_ipv4;                  // the IPv4 header changed: compute its checksum
    bit<8>   drop_reason;               // DROP_*
    // from the tables of Admit
    bit<16>  job_index;
    bit<16>  slot_base;
    bit<16>  slots;
    bit<8>   quorum;
    bit<8>   min_quorum;
    group_t  group;
    bit<1>   has_parent;                // this switch is a leaf to the job
    port_t   parent_port;
    bitmap_t worker_bit;                // the sender's, 0 of observers and of the parent
    port_t   worker_port;
    ipv4_t   worker_address;
    bit<16>  worker_udp_port;
    bitmap_t packet_contributors;       // workers in the values that the packet brings
    // from TreePeers
    bit<1>   is_tree_peer;              // comes from a leaf, or from the parent
    bitmap_t members;                   // a leaf's: the workers below it
    // from Slot
    bit<32>  slot_index;                // register index of (slot, version)
    bit<8>   operation;                 // OPERATION_*
    bit<8>   reply;                     // REPLY_*
    bit<32>  held;                      // STALE, STATE: round of the copy
    bit<8>   held_op;                   // STATE: op of the copy
    bit<16>  state;                     // STATE: STATE_*
    bitmap_t contributors;
}

// All ones in the lanes that are 1, for lanes that are 0 or 1; `high` has the highest bit of every lane. 0 + ~high leaves
// ~high, 1 + ~high is high, the opposite in every bit: nothing is carried from lane to lane.
#define LANE_MASK(bits, high) (((bits) + ~high) ^ ~high)

// One bit in every lane.
const bit<64>   LOW8_64     = 0x0101010101010101;
const bit<256>  LOW8_256    = LOW8_64 ++ LOW8_64 ++ LOW8_64 ++ LOW8_64;
const bit<1024> LOW8_1024   = LOW8_256 ++ LOW8_256 ++ LOW8_256 ++ LOW8_256;
const vector_t  LOW8        = LOW8_1024 ++ LOW8_1024;           // lowest bit of every 8-bit lane
const bit<64>   HIGH8_64    = 0x8080808080808080;
const bit<256>  HIGH8_256   = HIGH8_64 ++ HIGH8_64 ++ HIGH8_64 ++ HIGH8_64;
const bit<1024> HIGH8_1024  = HIGH8_256 ++ HIGH8_256 ++ HIGH8_256 ++ HIGH8_256;
const vector_t  HIGH8       = HIGH8_1024 ++ HIGH8_1024;         // highest bit of every 8-bit lane
const bit<64>   NIBBLE8_64  = 0x0f0f0f0f0f0f0f0f;
const bit<256>  NIBBLE8_256 = NIBBLE8_64 ++ NIBBLE8_64 ++ NIBBLE8_64 ++ NIBBLE8_64;
const bit<1024> NIBBLE8_1024 = NIBBLE8_256 ++ NIBBLE8_256 ++ NIBBLE8_256 ++ NIBBLE8_256;
const vector_t  NIBBLE8     = NIBBLE8_1024 ++ NIBBLE8_1024;     // lowest 4 bits of every 8-bit lane
const bit<64>   LOW16_64    = 0x0001000100010001;
const bit<256>  LOW16_256   = LOW16_64 ++ LOW16_64 ++ LOW16_64 ++ LOW16_64;
const bit<1024> LOW16_1024  = LOW16_256 ++ LOW16_256 ++ LOW16_256 ++ LOW16_256;
const vector_t  LOW16       = LOW16_1024 ++ LOW16_1024;         // lowest bit of every 16-bit lane
const bit<64>   HIGH16_64   = 0x8000800080008000;
const bit<256>  HIGH16_256  = HIGH16_64 ++ HIGH16_64 ++ HIGH16_64 ++ HIGH16_64;
const bit<1024> HIGH16_1024 = HIGH16_256 ++ HIGH16_256 ++ HIGH16_256 ++ HIGH16_256;
const vector_t  HIGH16      = HIGH16_1024 ++ HIGH16_1024;       // highest bit of every 16-bit lane
const bit<64>   HIGH32_64   = 0x8000000080000000;
const bit<256>  HIGH32_256  = HIGH32_64 ++ HIGH32_64 ++ HIGH32_64 ++ HIGH32_64;
const bit<1024> HIGH32_1024 = HIGH32_256 ++ HIGH32_256 ++ HIGH32_256 ++ HIGH32_256;
const vector_t  HIGH32      = HIGH32_1024 ++ HIGH32_1024;       // highest bit of every 32-bit lane

#endif
