// SPDX-License-Identifier: Apache-2.0
// Headers down to the hopsum header, shared by all architectures. Big-endian. Payload headers follow in
// <architecture>/payload.p4, because their widths depend on what a back end can handle.

#ifndef HOPSUM_HEADERS_P4
#define HOPSUM_HEADERS_P4

#include "types.p4"

header ethernet_h {
    mac_t   dst;
    mac_t   src;
    bit<16> ethertype;
}

// ARP for IPv4 over Ethernet.
header arp_h {
    bit<16> hardware;           // 1: Ethernet
    bit<16> protocol;           // ETHERTYPE_IPV4
    bit<8>  hardware_bytes;     // 6
    bit<8>  protocol_bytes;     // 4
    bit<16> operation;          // 1 request, 2 reply
    mac_t   sender_mac;
    ipv4_t  sender_ip;
    mac_t   target_mac;
    ipv4_t  target_ip;
}

header ipv4_h {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> total_length;       // bytes, this header included
    bit<16> identification;
    bit<3>  flags;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    ipv4_t  src;
    ipv4_t  dst;
}

header icmp_h {
    bit<8>  type;               // 8 echo request, 0 echo reply
    bit<8>  code;
    bit<16> checksum;
}

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;             // bytes, this header included
    bit<16> checksum;           // 0 in replies: the payload changed
}

// 32 bytes.
header hopsum_h {
    bit<8>  version;            // WIRE_VERSION
    bit<8>  kind;               // KIND_*
    bit<8>  flags;              // FLAG_*
    bit<8>  op;                 // OP_*; 0 in PROBE; STATE: that of the held round
    bit<16> worker;             // rank (a leaf's number): the sender's in UPDATE, PARTIAL and PROBE, the receiver's in replies
    bit<16> slot;               // position mod S
    bit<32> generation;         // incarnation of the job, never 0, never reused
    bit<32> round;              // use count of the slot, from 1; in replies: the round asked for
    bit<32> held;               // STALE, STATE: the round that the slot's copy holds; else 0
    bit<64> contributors;       // workers in the sum (STALE, STATE: in the held sum); 0 in UPDATE and PROBE
    bit<16> count;              // elements of the chunk that are in use; carried through; STATE: STATE_*
    bit<16> length;             // payload bytes after this header
}

#endif
