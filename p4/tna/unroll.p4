// SPDX-License-Identifier: Apache-2.0
// The words of half a pass, spelled out. Codes travel in groups of G = CODES_HALF: byte j of a group holds code j in its
// high and code j + G / 2 in its low nibble. Bytes 4 q .. 4 q + 3 give word q of the lanes (high nibbles) and word
// G / 8 + q (low nibbles), so lanes are in element order.
//   CODES(X)          X(q, G / 8 + q) for each four bytes of codes: the two words that they give
//   LANES(X, more)    X(nibble, word, more) for all words of the lanes

#ifndef HOPSUM_UNROLL_P4
#define HOPSUM_UNROLL_P4

#if CODES_HALF == 16
#define CODES(X) \
    X(0, 2) X(1, 3)
#define LANES(X, ...) \
    X(h, 0, __VA_ARGS__) X(h, 1, __VA_ARGS__) X(l, 2, __VA_ARGS__) X(l, 3, __VA_ARGS__)
#elif CODES_HALF == 32
#define CODES(X) \
    X(0, 4) X(1, 5) X(2, 6) X(3, 7)
#define LANES(X, ...) \
    X(h, 0, __VA_ARGS__) X(h, 1, __VA_ARGS__) X(h, 2, __VA_ARGS__) X(h, 3, __VA_ARGS__) \
    X(l, 4, __VA_ARGS__) X(l, 5, __VA_ARGS__) X(l, 6, __VA_ARGS__) X(l, 7, __VA_ARGS__)
#elif CODES_HALF == 64
#define CODES(X) \
    X(0, 8) X(1, 9) X(2, 10) X(3, 11) X(4, 12) X(5, 13) X(6, 14) X(7, 15)
#define LANES(X, ...) \
    X(h, 0, __VA_ARGS__) X(h, 1, __VA_ARGS__) X(h, 2, __VA_ARGS__) X(h, 3, __VA_ARGS__) \
    X(h, 4, __VA_ARGS__) X(h, 5, __VA_ARGS__) X(h, 6, __VA_ARGS__) X(h, 7, __VA_ARGS__) \
    X(l, 8, __VA_ARGS__) X(l, 9, __VA_ARGS__) X(l, 10, __VA_ARGS__) X(l, 11, __VA_ARGS__) \
    X(l, 12, __VA_ARGS__) X(l, 13, __VA_ARGS__) X(l, 14, __VA_ARGS__) X(l, 15, __VA_ARGS__)
#elif CODES_HALF == 128
#define CODES(X) \
    X(0, 16) X(1, 17) X(2, 18) X(3, 19) X(4, 20) X(5, 21) X(6, 22) X(7, 23) X(8, 24) X(9, 25) X(10, 26) X(11, 27) \
    X(12, 28) X(13, 29) X(14, 30) X(15, 31)
#define LANES(X, ...) \
    X(h, 0, __VA_ARGS__) X(h, 1, __VA_ARGS__) X(h, 2, __VA_ARGS__) X(h, 3, __VA_ARGS__) \
    X(h, 4, __VA_ARGS__) X(h, 5, __VA_ARGS__) X(h, 6, __VA_ARGS__) X(h, 7, __VA_ARGS__) \
    X(h, 8, __VA_ARGS__) X(h, 9, __VA_ARGS__) X(h, 10, __VA_ARGS__) X(h, 11, __VA_ARGS__) \
    X(h, 12, __VA_ARGS__) X(h, 13, __VA_ARGS__) X(h, 14, __VA_ARGS__) X(h, 15, __VA_ARGS__) \
    X(l, 16, __VA_ARGS__) X(l, 17, __VA_ARGS__) X(l, 18, __VA_ARGS__) X(l, 19, __VA_ARGS__) \
    X(l, 20, __VA_ARGS__) X(l, 21, __VA_ARGS__) X(l, 22, __VA_ARGS__) X(l, 23, __VA_ARGS__) \
    X(l, 24, __VA_ARGS__) X(l, 25, __VA_ARGS__) X(l, 26, __VA_ARGS__) X(l, 27, __VA_ARGS__) \
    X(l, 28, __VA_ARGS__) X(l, 29, __VA_ARGS__) X(l, 30, __VA_ARGS__) X(l, 31, __VA_ARGS__)
#endif

#endif
