// SPDX-License-Identifier: Apache-2.0
// The codes and lanes of half a pass, spelled out. Codes travel in groups of G = CODES_HALF: byte j of a group holds
// code j in its high and code j + G / 2 in its low nibble. So 32-bit word q of the codes holds those of word q of the
// lanes (high nibbles) and of word G / 8 + q (low nibbles), and lanes are in element order.
//   CODES(X)    X(word) for all words of the codes
//   LANES(X)    X(HIGH or LOW, word of the lanes, word of the codes) for all words of the lanes

#ifndef HOPSUM_UNROLL_P4
#define HOPSUM_UNROLL_P4

#define HIGH(word) word[31:28], word[23:20], word[15:12], word[7:4]
#define LOW(word)  word[27:24], word[19:16], word[11:8], word[3:0]

#if CODES_HALF == 16
#define CODES(X) X(0) X(1)
#define LANES(X) \
    X(HIGH, 0, 0) X(HIGH, 1, 1) X(LOW, 2, 0) X(LOW, 3, 1)
#elif CODES_HALF == 32
#define CODES(X) X(0) X(1) X(2) X(3)
#define LANES(X) \
    X(HIGH, 0, 0) X(HIGH, 1, 1) X(HIGH, 2, 2) X(HIGH, 3, 3) X(LOW, 4, 0) X(LOW, 5, 1) X(LOW, 6, 2) X(LOW, 7, 3)
#elif CODES_HALF == 64
#define CODES(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define LANES(X) \
    X(HIGH, 0, 0) X(HIGH, 1, 1) X(HIGH, 2, 2) X(HIGH, 3, 3) X(HIGH, 4, 4) X(HIGH, 5, 5) X(HIGH, 6, 6) X(HIGH, 7, 7) \
    X(LOW, 8, 0) X(LOW, 9, 1) X(LOW, 10, 2) X(LOW, 11, 3) X(LOW, 12, 4) X(LOW, 13, 5) X(LOW, 14, 6) X(LOW, 15, 7)
#elif CODES_HALF == 128
#define CODES(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define LANES(X) \
    X(HIGH, 0, 0) X(HIGH, 1, 1) X(HIGH, 2, 2) X(HIGH, 3, 3) X(HIGH, 4, 4) X(HIGH, 5, 5) X(HIGH, 6, 6) X(HIGH, 7, 7) \
    X(HIGH, 8, 8) X(HIGH, 9, 9) X(HIGH, 10, 10) X(HIGH, 11, 11) X(HIGH, 12, 12) X(HIGH, 13, 13) X(HIGH, 14, 14) X(HIGH, 15, 15) \
    X(LOW, 16, 0) X(LOW, 17, 1) X(LOW, 18, 2) X(LOW, 19, 3) X(LOW, 20, 4) X(LOW, 21, 5) X(LOW, 22, 6) X(LOW, 23, 7) \
    X(LOW, 24, 8) X(LOW, 25, 9) X(LOW, 26, 10) X(LOW, 27, 11) X(LOW, 28, 12) X(LOW, 29, 13) X(LOW, 30, 14) X(LOW, 31, 15)
#endif

#endif
