// SPDX-License-Identifier: Apache-2.0
// Where the words of half a pass go: X(word, match of its lookups, stage of its lookups, stage of its register), and the
// stages of the slot's tables. Left to itself the compiler finds a place for up to 64 codes a pass on Tofino 1 and 128 on
// Tofino 2; for 128 on Tofino 1 it needs this plan. What a stage there has room for:
//   8 hash functions: one for each exact match, one for each register address in use (a copy, a row of ingress, of egress)
//   4 registers: 32 for values, and those of Slot in stages 4 to 7 and 10
//   8 ternary matches, which also decide, admit and choose a register's action
//   what stands behind one condition is placed before what follows it: so each lookup has its own (IF_EACH). The
//   compiler's own search ends sooner with one for all (IF_ALL)
// Hence lookups run one or two stages ahead of their registers, ingress before egress, and half of egress' are ternary.

#ifndef HOPSUM_PLACEMENT_P4
#define HOPSUM_PLACEMENT_P4

#if __TARGET_TOFINO__ == 1 && CODES_HALF == 64
#define INGRESS_WORDS(X) \
    X(0, exact, @stage(0), @stage(2)) X(1, exact, @stage(0), @stage(2)) \
    X(2, exact, @stage(2), @stage(11)) X(3, exact, @stage(1), @stage(2)) \
    X(4, exact, @stage(1), @stage(3)) X(5, exact, @stage(1), @stage(3)) \
    X(6, exact, @stage(2), @stage(3)) X(7, exact, @stage(2), @stage(4)) \
    X(8, exact, @stage(3), @stage(4)) X(9, exact, @stage(3), @stage(4)) \
    X(10, exact, @stage(4), @stage(5)) X(11, exact, @stage(4), @stage(5)) \
    X(12, exact, @stage(5), @stage(6)) X(13, exact, @stage(5), @stage(6)) \
    X(14, exact, @stage(6), @stage(7)) X(15, exact, @stage(6), @stage(7))
#define EGRESS_WORDS(X) \
    X(0, ternary, @stage(1), @stage(3)) X(1, ternary, @stage(1), @stage(5)) \
    X(2, ternary, @stage(2), @stage(7)) X(3, ternary, @stage(2), @stage(8)) \
    X(4, ternary, @stage(4), @stage(8)) X(5, ternary, @stage(5), @stage(8)) \
    X(6, ternary, @stage(3), @stage(8)) X(7, ternary, @stage(6), @stage(9)) \
    X(8, exact, @stage(7), @stage(9)) X(9, exact, @stage(7), @stage(9)) \
    X(10, exact, @stage(8), @stage(9)) X(11, exact, @stage(8), @stage(10)) \
    X(12, exact, @stage(9), @stage(10)) X(13, exact, @stage(9), @stage(11)) \
    X(14, exact, @stage(10), @stage(11)) X(15, exact, @stage(10), @stage(11))
#define SLOT_STAGE(n) @stage(n)
#define IF_ALL(condition, statement) statement
#define IF_EACH(condition, statement) if (condition) { statement }
#else
#define WORDS4(X) \
    X(0, exact, , ) X(1, exact, , ) X(2, exact, , ) X(3, exact, , )
#define WORDS8(X) WORDS4(X) \
    X(4, exact, , ) X(5, exact, , ) X(6, exact, , ) X(7, exact, , )
#define WORDS16(X) WORDS8(X) \
    X(8, exact, , ) X(9, exact, , ) X(10, exact, , ) X(11, exact, , ) \
    X(12, exact, , ) X(13, exact, , ) X(14, exact, , ) X(15, exact, , )
#define WORDS32(X) WORDS16(X) \
    X(16, exact, , ) X(17, exact, , ) X(18, exact, , ) X(19, exact, , ) \
    X(20, exact, , ) X(21, exact, , ) X(22, exact, , ) X(23, exact, , ) \
    X(24, exact, , ) X(25, exact, , ) X(26, exact, , ) X(27, exact, , ) \
    X(28, exact, , ) X(29, exact, , ) X(30, exact, , ) X(31, exact, , )
#if CODES_HALF == 16
#define INGRESS_WORDS(X) WORDS4(X)
#elif CODES_HALF == 32
#define INGRESS_WORDS(X) WORDS8(X)
#elif CODES_HALF == 64
#define INGRESS_WORDS(X) WORDS16(X)
#elif CODES_HALF == 128
#define INGRESS_WORDS(X) WORDS32(X)
#endif
#define EGRESS_WORDS(X) INGRESS_WORDS(X)
#define SLOT_STAGE(n)
#define IF_ALL(condition, statement) if (condition) { statement }
#define IF_EACH(condition, statement) statement
#endif

#endif
