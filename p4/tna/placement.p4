// SPDX-License-Identifier: Apache-2.0
// Where the words of half a pass go: X(nibble, word, match of its lookups, stages of the left lookup, the right one and the
// register), and the stages of the slot's tables. Left to itself the compiler finds a place for up to 64 codes a pass on
// Tofino 1 and 128 on Tofino 2; for twice as many it needs these plans. What a stage has room for:
//   8 hash functions: one for each exact match, one for each register address in use (a copy, a row of ingress, of egress)
//   4 registers: those for values, and the 7 of Slot (on Tofino 1 in stages 4 to 7 and 10)
//   8 ternary matches, which also decide, admit and choose a register's action
//   one instruction for a container: where a word has one of 32 bits, its two lookups are in different stages
//   what stands behind one condition is placed before what follows it: so each lookup has its own (IF_EACH). The
//   compiler's own search ends sooner with one for all (IF_ALL)
// Hence lookups run one to four stages ahead of their registers, and some are ternary.

#ifndef HOPSUM_PLACEMENT_P4
#define HOPSUM_PLACEMENT_P4

#if __TARGET_TOFINO__ == 1 && CODES_HALF == 64
#define INGRESS_WORDS(X) \
    X(h, 0, exact, @stage(0), @stage(0), @stage(2)) X(h, 1, exact, @stage(0), @stage(0), @stage(2)) \
    X(h, 2, exact, @stage(2), @stage(2), @stage(11)) X(h, 3, exact, @stage(1), @stage(1), @stage(2)) \
    X(h, 4, exact, @stage(1), @stage(1), @stage(3)) X(h, 5, exact, @stage(1), @stage(1), @stage(3)) \
    X(h, 6, exact, @stage(2), @stage(2), @stage(3)) X(h, 7, exact, @stage(2), @stage(2), @stage(4)) \
    X(l, 8, exact, @stage(3), @stage(3), @stage(4)) X(l, 9, exact, @stage(3), @stage(3), @stage(4)) \
    X(l, 10, exact, @stage(4), @stage(4), @stage(5)) X(l, 11, exact, @stage(4), @stage(4), @stage(5)) \
    X(l, 12, exact, @stage(5), @stage(5), @stage(6)) X(l, 13, exact, @stage(5), @stage(5), @stage(6)) \
    X(l, 14, exact, @stage(6), @stage(6), @stage(7)) X(l, 15, exact, @stage(6), @stage(6), @stage(7))
#define EGRESS_WORDS(X) \
    X(h, 0, ternary, @stage(1), @stage(1), @stage(3)) X(h, 1, ternary, @stage(1), @stage(1), @stage(5)) \
    X(h, 2, ternary, @stage(2), @stage(2), @stage(7)) X(h, 3, ternary, @stage(2), @stage(2), @stage(8)) \
    X(h, 4, ternary, @stage(4), @stage(4), @stage(8)) X(h, 5, ternary, @stage(5), @stage(5), @stage(8)) \
    X(h, 6, ternary, @stage(3), @stage(3), @stage(8)) X(h, 7, ternary, @stage(6), @stage(6), @stage(9)) \
    X(l, 8, exact, @stage(7), @stage(7), @stage(9)) X(l, 9, exact, @stage(7), @stage(7), @stage(9)) \
    X(l, 10, exact, @stage(8), @stage(8), @stage(9)) X(l, 11, exact, @stage(8), @stage(8), @stage(10)) \
    X(l, 12, exact, @stage(9), @stage(9), @stage(10)) X(l, 13, exact, @stage(9), @stage(9), @stage(11)) \
    X(l, 14, exact, @stage(10), @stage(10), @stage(11)) X(l, 15, exact, @stage(10), @stage(10), @stage(11))
#define SLOT_STAGE(n) @stage(n)
#define IF_ALL(condition, statement) statement
#define IF_EACH(condition, statement) if (condition) { statement }
#elif __TARGET_TOFINO__ == 2 && CODES_HALF == 128
#define INGRESS_WORDS(X) \
    X(h, 0, ternary, @stage(7), @stage(8), @stage(9)) X(h, 1, exact, @stage(7), @stage(8), @stage(9)) \
    X(h, 2, ternary, @stage(9), @stage(10), @stage(11)) X(h, 3, exact, @stage(9), @stage(10), @stage(11)) \
    X(h, 4, exact, @stage(9), @stage(10), @stage(11)) X(h, 5, exact, @stage(11), @stage(12), @stage(13)) \
    X(h, 6, exact, @stage(11), @stage(12), @stage(13)) X(h, 7, ternary, @stage(11), @stage(12), @stage(13)) \
    X(h, 8, ternary, @stage(10), @stage(12), @stage(13)) X(h, 9, exact, @stage(13), @stage(14), @stage(15)) \
    X(h, 10, exact, @stage(13), @stage(14), @stage(15)) X(h, 11, ternary, @stage(13), @stage(14), @stage(15)) \
    X(h, 12, exact, @stage(13), @stage(14), @stage(15)) X(h, 13, exact, @stage(15), @stage(16), @stage(17)) \
    X(h, 14, exact, @stage(15), @stage(16), @stage(17)) X(h, 15, ternary, @stage(15), @stage(16), @stage(17)) \
    X(l, 16, exact, @stage(15), @stage(16), @stage(17)) X(l, 17, exact, @stage(17), @stage(18), @stage(19)) \
    X(l, 18, ternary, @stage(0), @stage(0), @stage(1)) X(l, 19, exact, @stage(0), @stage(0), @stage(1)) \
    X(l, 20, ternary, @stage(0), @stage(0), @stage(1)) X(l, 21, ternary, @stage(2), @stage(2), @stage(3)) \
    X(l, 22, exact, @stage(2), @stage(2), @stage(3)) X(l, 23, exact, @stage(2), @stage(2), @stage(3)) \
    X(l, 24, ternary, @stage(1), @stage(2), @stage(3)) X(l, 25, ternary, @stage(4), @stage(4), @stage(5)) \
    X(l, 26, exact, @stage(4), @stage(4), @stage(5)) X(l, 27, exact, @stage(4), @stage(4), @stage(5)) \
    X(l, 28, ternary, @stage(6), @stage(6), @stage(7)) X(l, 29, exact, @stage(6), @stage(6), @stage(7)) \
    X(l, 30, exact, @stage(6), @stage(6), @stage(7)) X(l, 31, ternary, @stage(8), @stage(8), @stage(9))
#define EGRESS_WORDS(X) \
    X(h, 0, exact, @stage(10), @stage(11), @stage(12)) X(h, 1, exact, @stage(10), @stage(11), @stage(12)) \
    X(h, 2, exact, @stage(12), @stage(13), @stage(14)) X(h, 3, exact, @stage(12), @stage(13), @stage(14)) \
    X(h, 4, ternary, @stage(12), @stage(13), @stage(14)) X(h, 5, ternary, @stage(10), @stage(13), @stage(14)) \
    X(h, 6, ternary, @stage(14), @stage(15), @stage(16)) X(h, 7, exact, @stage(14), @stage(15), @stage(16)) \
    X(h, 8, ternary, @stage(14), @stage(15), @stage(16)) X(h, 9, exact, @stage(14), @stage(15), @stage(16)) \
    X(h, 10, ternary, @stage(16), @stage(17), @stage(18)) X(h, 11, exact, @stage(16), @stage(17), @stage(18)) \
    X(h, 12, ternary, @stage(16), @stage(17), @stage(18)) X(h, 13, exact, @stage(16), @stage(17), @stage(18)) \
    X(h, 14, exact, @stage(17), @stage(18), @stage(19)) X(h, 15, ternary, @stage(17), @stage(18), @stage(19)) \
    X(l, 16, exact, @stage(17), @stage(18), @stage(19)) X(l, 17, ternary, @stage(1), @stage(1), @stage(2)) \
    X(l, 18, exact, @stage(1), @stage(1), @stage(2)) X(l, 19, exact, @stage(1), @stage(1), @stage(2)) \
    X(l, 20, ternary, @stage(3), @stage(3), @stage(4)) X(l, 21, exact, @stage(3), @stage(3), @stage(4)) \
    X(l, 22, exact, @stage(3), @stage(3), @stage(4)) X(l, 23, ternary, @stage(5), @stage(5), @stage(6)) \
    X(l, 24, exact, @stage(5), @stage(5), @stage(6)) X(l, 25, ternary, @stage(7), @stage(7), @stage(8)) \
    X(l, 26, exact, @stage(7), @stage(7), @stage(8)) X(l, 27, exact, @stage(7), @stage(7), @stage(8)) \
    X(l, 28, ternary, @stage(9), @stage(9), @stage(10)) X(l, 29, exact, @stage(9), @stage(9), @stage(10)) \
    X(l, 30, exact, @stage(9), @stage(9), @stage(10)) X(l, 31, ternary, @stage(11), @stage(11), @stage(12))
// Of the containers that an action may change, Tofino 2 has 48 of 32 bits and 72 of 16: the first words have one of 32,
// the others two of 16, and the earliest registers.
#define INGRESS_WHOLE(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17)
#define INGRESS_SPLIT(X) \
    X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define EGRESS_WHOLE(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)
#define EGRESS_SPLIT(X) \
    X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define SLOT_STAGE(n)
#define IF_ALL(condition, statement) statement
#define IF_EACH(condition, statement) if (condition) { statement }
#else
#define INGRESS_WORDS(X) LANES(X, exact, , , )
#define EGRESS_WORDS(X) INGRESS_WORDS(X)
#define SLOT_STAGE(n)
#define IF_ALL(condition, statement) if (condition) { statement }
#define IF_EACH(condition, statement) statement
#endif

#ifndef INGRESS_WHOLE
#define INGRESS_WHOLE(X)
#define INGRESS_SPLIT(X)
#define EGRESS_WHOLE(X)
#define EGRESS_SPLIT(X)
#endif

#endif
