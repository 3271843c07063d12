// SPDX-License-Identifier: Apache-2.0
// Types shared by all architectures.

#ifndef HOPSUM_TYPES_P4
#define HOPSUM_TYPES_P4

typedef bit<48> mac_t;
typedef bit<32> ipv4_t;
typedef bit<64> bitmap_t;       // one bit per worker

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP  = 0x0806;
const bit<8>  PROTO_ICMP     = 1;
const bit<8>  PROTO_UDP      = 17;
const bit<8>  REPLY_TTL      = 64;

#endif
