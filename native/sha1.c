/* SHA-1 of whole blocks of 64 bytes, with the SHA instructions of x86-64 processors that have them
 * (detected once, when the library is loaded), or in portable C. */
#include "rmqpy_native.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define RMQ_HAS_SHA
#define WITH_SHA __attribute__((target("sha,sse4.1")))
#define SHA_BIT (1u << 29) /* in ebx of CPUID leaf 7 */
#endif

#define BLOCK 64u

static inline uint32_t rotate_left(uint32_t value, unsigned bits)
{
    return (value << bits) | (value >> (32 - bits));
}

static inline uint32_t schedule_word(uint32_t *words, unsigned i)
{
    if (i >= 16)
        words[i & 15] = rotate_left(words[(i + 13) & 15] ^ words[(i + 8) & 15] ^ words[(i + 2) & 15] ^ words[i & 15], 1);
    return words[i & 15];
}

static void hash_block(uint32_t *state, const uint8_t *block)
{
    uint32_t words[16], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];

    for (unsigned i = 0; i < 16; i++)
        words[i] = rmq_load32(block + 4 * i);
#define STEP(mix, constant)                                                                                            \
    do {                                                                                                               \
        const uint32_t next = rotate_left(a, 5) + (mix) + e + (constant) + schedule_word(words, i);                    \
        e = d;                                                                                                         \
        d = c;                                                                                                         \
        c = rotate_left(b, 30);                                                                                        \
        b = a;                                                                                                         \
        a = next;                                                                                                      \
    } while (0)
/* Unrolled, the index of each word is a constant. */
#pragma GCC unroll 20
    for (unsigned i = 0; i < 20; i++)
        STEP(d ^ (b & (c ^ d)), 0x5A827999u);
#pragma GCC unroll 20
    for (unsigned i = 20; i < 40; i++)
        STEP(b ^ c ^ d, 0x6ED9EBA1u);
#pragma GCC unroll 20
    for (unsigned i = 40; i < 60; i++)
        STEP((b & c) | (d & (b | c)), 0x8F1BBCDCu);
#pragma GCC unroll 20
    for (unsigned i = 60; i < 80; i++)
        STEP(b ^ c ^ d, 0xCA62C1D6u);
#undef STEP
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

void rmq_sha1_blocks_portable(uint32_t *state, const uint8_t *at, size_t count)
{
    for (; count > 0; count--, at += BLOCK)
        hash_block(state, at);
}

#ifdef RMQ_HAS_SHA
static int has_sha_ni;

__attribute__((constructor)) static void prepare(void)
{
    unsigned a, b = 0, c, d;

    __builtin_cpu_init();
    has_sha_ni = __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & SHA_BIT) != 0;
}

/* Four steps with the words `next_words`. The instruction needs the quarter of the 80 steps as a constant. */
#define FOUR_STEPS(quarter)                                                                                            \
    do {                                                                                                               \
        const __m128i before = abcd;                                                                                   \
        const __m128i sum = i == 0 ? _mm_add_epi32(e, next_words) : _mm_sha1nexte_epu32(e, next_words);                \
        abcd = _mm_sha1rnds4_epu32(abcd, sum, quarter);                                                                \
        e = before;                                                                                                    \
    } while (0)

WITH_SHA static void hash_blocks_sha_ni(uint32_t *state, const uint8_t *at, size_t count)
{
    const __m128i byte_order = _mm_set_epi64x(0x0001020304050607, 0x08090A0B0C0D0E0F);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)state), 0x1B);
    __m128i last = _mm_set_epi32((int32_t)state[4], 0, 0, 0);

    for (; count > 0; count--, at += BLOCK) {
        const __m128i first = abcd;
        __m128i e = last, words[4];
        for (int i = 0; i < 4; i++)
            words[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(at + 16 * i)), byte_order);
#pragma GCC unroll 20
        for (int i = 0; i < 20; i++) {
            if (i >= 4) {
                const __m128i mixed = _mm_sha1msg1_epu32(words[i & 3], words[(i + 1) & 3]);
                words[i & 3] = _mm_sha1msg2_epu32(_mm_xor_si128(mixed, words[(i + 2) & 3]), words[(i + 3) & 3]);
            }
            const __m128i next_words = words[i & 3];
            if (i < 5)
                FOUR_STEPS(0);
            else if (i < 10)
                FOUR_STEPS(1);
            else if (i < 15)
                FOUR_STEPS(2);
            else
                FOUR_STEPS(3);
        }
        last = _mm_sha1nexte_epu32(e, last);
        abcd = _mm_add_epi32(abcd, first);
    }
    _mm_storeu_si128((__m128i *)(void *)state, _mm_shuffle_epi32(abcd, 0x1B));
    state[4] = (uint32_t)_mm_extract_epi32(last, 3);
}
#endif

void rmq_sha1_blocks(uint32_t *state, const uint8_t *at, size_t count)
{
#ifdef RMQ_HAS_SHA
    if (has_sha_ni) {
        if (count > 0)
            hash_blocks_sha_ni(state, at, count);
        return;
    }
#endif
    rmq_sha1_blocks_portable(state, at, count);
}
