// SPDX-License-Identifier: Apache-2.0
// The codes and lanes of half a pass, spelled out. Codes travel in groups of G = CODES_HALF: byte j of a group holds
// code j in its high and code j + G / 2 in its low nibble. Bytes 4 q .. 4 q + 3 give word q of the lanes (high nibbles)
// and word G / 8 + q (low nibbles), so lanes are in element order.
//   CODES(X)    X(byte) for all bytes of the codes
//   LANES(X)    X(nibble, word, byte, byte, byte, byte) for all words of the lanes

#ifndef HOPSUM_UNROLL_P4
#define HOPSUM_UNROLL_P4

#if CODES_HALF == 16
#define CODES(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define LANES(X) \
    X(h, 0, 0, 1, 2, 3) X(h, 1, 4, 5, 6, 7) X(l, 2, 0, 1, 2, 3) X(l, 3, 4, 5, 6, 7)
#elif CODES_HALF == 32
#define CODES(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define LANES(X) \
    X(h, 0, 0, 1, 2, 3) X(h, 1, 4, 5, 6, 7) X(h, 2, 8, 9, 10, 11) X(h, 3, 12, 13, 14, 15) \
    X(l, 4, 0, 1, 2, 3) X(l, 5, 4, 5, 6, 7) X(l, 6, 8, 9, 10, 11) X(l, 7, 12, 13, 14, 15)
#elif CODES_HALF == 64
#define CODES(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) \
    X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define LANES(X) \
    X(h, 0, 0, 1, 2, 3) X(h, 1, 4, 5, 6, 7) X(h, 2, 8, 9, 10, 11) X(h, 3, 12, 13, 14, 15) \
    X(h, 4, 16, 17, 18, 19) X(h, 5, 20, 21, 22, 23) X(h, 6, 24, 25, 26, 27) X(h, 7, 28, 29, 30, 31) \
    X(l, 8, 0, 1, 2, 3) X(l, 9, 4, 5, 6, 7) X(l, 10, 8, 9, 10, 11) X(l, 11, 12, 13, 14, 15) \
    X(l, 12, 16, 17, 18, 19) X(l, 13, 20, 21, 22, 23) X(l, 14, 24, 25, 26, 27) X(l, 15, 28, 29, 30, 31)
#elif CODES_HALF == 128
#define CODES(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) \
    X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31) \
    X(32) X(33) X(34) X(35) X(36) X(37) X(38) X(39) X(40) X(41) X(42) X(43) X(44) X(45) X(46) X(47) \
    X(48) X(49) X(50) X(51) X(52) X(53) X(54) X(55) X(56) X(57) X(58) X(59) X(60) X(61) X(62) X(63)
#define LANES(X) \
    X(h, 0, 0, 1, 2, 3) X(h, 1, 4, 5, 6, 7) X(h, 2, 8, 9, 10, 11) X(h, 3, 12, 13, 14, 15) \
    X(h, 4, 16, 17, 18, 19) X(h, 5, 20, 21, 22, 23) X(h, 6, 24, 25, 26, 27) X(h, 7, 28, 29, 30, 31) \
    X(h, 8, 32, 33, 34, 35) X(h, 9, 36, 37, 38, 39) X(h, 10, 40, 41, 42, 43) X(h, 11, 44, 45, 46, 47) \
    X(h, 12, 48, 49, 50, 51) X(h, 13, 52, 53, 54, 55) X(h, 14, 56, 57, 58, 59) X(h, 15, 60, 61, 62, 63) \
    X(l, 16, 0, 1, 2, 3) X(l, 17, 4, 5, 6, 7) X(l, 18, 8, 9, 10, 11) X(l, 19, 12, 13, 14, 15) \
    X(l, 20, 16, 17, 18, 19) X(l, 21, 20, 21, 22, 23) X(l, 22, 24, 25, 26, 27) X(l, 23, 28, 29, 30, 31) \
    X(l, 24, 32, 33, 34, 35) X(l, 25, 36, 37, 38, 39) X(l, 26, 40, 41, 42, 43) X(l, 27, 44, 45, 46, 47) \
    X(l, 28, 48, 49, 50, 51) X(l, 29, 52, 53, 54, 55) X(l, 30, 56, 57, 58, 59) X(l, 31, 60, 61, 62, 63)
#endif

#endif
