// SPDX-License-Identifier: Apache-2.0
// Types shared by all architectures.

#ifndef HOPSUM_TYPES_P4
#define HOPSUM_TYPES_P4

typedef bit<48> mac_t;
typedef bit<32> ipv4_t;
typedef bit<64> bitmap_t;       // one bit per worker
typedef bit<9>  port_t;         // of the switch: egressSpec_t of v1model, PortId_t of TNA
typedef bit<16> group_t;        // multicast group

// Bytes beside the payload: 20 of IPv4, 8 of UDP, 32 of hopsum; 14 more of Ethernet make the frame.
const bit<16> UDP_OVERHEAD_BYTES   = 40;
const bit<16> IPV4_OVERHEAD_BYTES  = 60;
const bit<32> FRAME_OVERHEAD_BYTES = 74;

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP  = 0x0806;
const bit<8>  PROTO_ICMP     = 1;
const bit<8>  PROTO_UDP      = 17;
const bit<8>  REPLY_TTL      = 64;

#endif
