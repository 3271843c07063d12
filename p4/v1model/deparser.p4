// SPDX-License-Identifier: Apache-2.0

control HopsumDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.icmp);
        packet.emit(hdr.udp);
        packet.emit(hdr.hopsum);
        packet.emit(hdr.codes8);
        packet.emit(hdr.codes16);
        packet.emit(hdr.codes3);
        packet.emit(hdr.codes2);
        packet.emit(hdr.lanes);
    }
}
