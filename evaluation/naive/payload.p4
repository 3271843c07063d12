// SPDX-License-Identifier: Apache-2.0
// Payload headers with a field for every code and every lane. All else is the shipped program's payload.p4.

#ifndef NAIVE_PAYLOAD_P4
#define NAIVE_PAYLOAD_P4

// Its headers of wide values get other names, so that ours can have theirs.
#define codes8_h wide_codes8_h
#define lanes_h wide_lanes_h
#define headers_t wide_headers_t
#include "../../p4/v1model/payload.p4"
#undef codes8_h
#undef lanes_h
#undef headers_t

// NAME(x): x with the number of the lane that lanes.p4 is at.
#define NAME(x) NAME_OF(x, HI, MID, LO)
#define NAME_OF(x, hi, mid, lo) JOIN(x, hi, mid, lo)
#define JOIN(x, hi, mid, lo) x##hi##mid##lo

// Byte j of a group has code j in its high nibble and code j + 256 in its low one: 000 with 100, 200 with 300.
header codes8_h {
#define FIRST 0
#define SECOND 1
#define LANE_FILE "code_field.p4"
#include "lanes256.p4"
#undef FIRST
#undef SECOND
#define FIRST 2
#define SECOND 3
#include "lanes256.p4"
#undef FIRST
#undef SECOND
#undef LANE_FILE
}

header lanes_h {
#define LANE_FILE "lane_field.p4"
#include "lanes.p4"
}

struct headers_t {
    ethernet_h ethernet;
    arp_h      arp;
    ipv4_h     ipv4;
    icmp_h     icmp;
    udp_h      udp;
    hopsum_h   hopsum;
    codes8_h   codes8;
    codes16_h  codes16;             // of an op that this program does not have: parsed, then refused
    lanes_h    lanes;
    packed_h   packed;              // likewise
}

#endif
