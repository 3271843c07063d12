// SPDX-License-Identifier: Apache-2.0
// Is this frame for the switch itself? Packets to the aggregation service are marked for Admit; ARP requests and
// ICMP echo requests for the switch's address are answered here, so that `ping` tells whether the link works.
// Fragmented or optioned echo requests are plain frames: the parser does not look into them.

const bit<8>  ICMP_ECHO_REPLY   = 0;
const bit<8>  ICMP_ECHO_REQUEST = 8;
const bit<16> ARP_ETHERNET      = 1;
const bit<16> ARP_REQUEST       = 1;
const bit<16> ARP_REPLY         = 2;

control Address(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    bit<1>   is_asked;                  // something that the switch does for its own address
    mac_t    mac_;
    ipv4_t   address;
    bit<17>  sum;

    @brief("An address of this switch: ARP and echo are answered with this MAC address.")
    action set_switch_mac(mac_t mac) { mac_ = mac; }

    @brief("The addresses of the aggregation service.")
    table switch_address {
        key = { address : exact @name("address"); }
        actions = { set_switch_mac; NoAction; }
        const default_action = NoAction;
        size = 4;
    }

    action return_to_sender() {
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac_;
        standard_metadata.egress_spec = standard_metadata.ingress_port;
        meta.destination = DESTINATION_ANSWERED;
    }

    action answer_arp() {
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = mac_;
        hdr.arp.sender_ip = address;
        return_to_sender();
    }

    action answer_echo() {
        hdr.icmp.type = ICMP_ECHO_REPLY;
        // RFC 1624: the sum's complement grows by what the type lost, with end-around carry
        sum = (bit<17>) hdr.icmp.checksum + 0x0800;
        hdr.icmp.checksum = sum[15:0] + (bit<16>) sum[16:16];
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = address;
        hdr.ipv4.ttl = REPLY_TTL;
        meta.new_ipv4 = 1;
        return_to_sender();
    }

    apply {
        is_asked = 1;
        address = hdr.ipv4.dst;
        if (hdr.arp.isValid()) {
            address = hdr.arp.target_ip;
            if (hdr.arp.hardware != ARP_ETHERNET || hdr.arp.protocol != ETHERTYPE_IPV4 || hdr.arp.hardware_bytes != 6
                    || hdr.arp.protocol_bytes != 4 || hdr.arp.operation != ARP_REQUEST) {
                is_asked = 0;
            }
        } else if (hdr.udp.isValid()) {
            if (hdr.udp.dst_port != HOPSUM_UDP_PORT) {
                is_asked = 0;
            }
        } else if (!hdr.icmp.isValid() || hdr.icmp.type != ICMP_ECHO_REQUEST) {
            is_asked = 0;
        }
        if (is_asked == 1) {
            switch (switch_address.apply().action_run) {
                set_switch_mac: {
                    if (hdr.udp.isValid()) {
                        meta.destination = DESTINATION_SERVICE;
                    } else if (hdr.arp.isValid()) {
                        answer_arp();
                    } else if (standard_metadata.checksum_error == 1) {
                        meta.drop_reason = DROP_BAD_CHECKSUM;
                    } else {
                        answer_echo();
                    }
                }
            }
        }
    }
}
