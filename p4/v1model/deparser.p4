// SPDX-License-Identifier: Apache-2.0

control HopsumDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.hopsum);
        packet.emit(hdr.codes);
        packet.emit(hdr.lanes);
    }
}
