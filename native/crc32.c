/* CRC-32 (IEEE 802.3, reflected polynomial 0xEDB88320) of message bodies. Three implementations
 * give the same value: tables, eight bytes per step, on every processor; and folding by carry-less
 * multiplication on x86-64 processors that support it, 64 bytes per step, or 256 if one instruction
 * multiplies four pairs. Support is detected once, when the library is loaded. */
#include "rmqpy_native.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define RMQ_HAS_PCLMUL 1
#include <immintrin.h>
#endif

#define POLYNOMIAL 0xEDB88320u
#define FOLD_MIN 64u
#define WIDE_MIN 512u /* below it, narrow folding is as fast */

/* table[k][b] is the effect of byte b followed by k zero bytes. Filled before anything can call it. */
static uint32_t table[8][256];
static int has_pclmul, has_vpclmul __attribute__((unused));

__attribute__((constructor)) static void prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ ((value & 1u) ? POLYNOMIAL : 0u);
        table[0][byte] = value;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t byte = 0; byte < 256; byte++)
            table[k][byte] = (table[k - 1][byte] >> 8) ^ table[0][table[k - 1][byte] & 0xFFu];
#ifdef RMQ_HAS_PCLMUL
    __builtin_cpu_init();
    has_pclmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    has_vpclmul = has_pclmul && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
#endif
}

static uint32_t load_little(const uint8_t *at)
{
    return at[0] | ((uint32_t)at[1] << 8) | ((uint32_t)at[2] << 16) | ((uint32_t)at[3] << 24);
}

static uint32_t crc_by_table(uint32_t crc, const uint8_t *data, size_t length)
{
    for (; length >= 8; data += 8, length -= 8) {
        const uint32_t low = crc ^ load_little(data);
        const uint32_t high = load_little(data + 4);
        crc = table[7][low & 0xFFu] ^ table[6][(low >> 8) & 0xFFu] ^ table[5][(low >> 16) & 0xFFu]
              ^ table[4][low >> 24] ^ table[3][high & 0xFFu] ^ table[2][(high >> 8) & 0xFFu]
              ^ table[1][(high >> 16) & 0xFFu] ^ table[0][high >> 24];
    }
    for (; length > 0; data++, length--)
        crc = (crc >> 8) ^ table[0][(crc ^ *data) & 0xFFu];
    return crc;
}

#ifdef RMQ_HAS_PCLMUL
#define WITH_PCLMUL __attribute__((target("pclmul,sse4.1")))

/* Shift `sum` by the distance that `powers` represents, and add `next`. */
WITH_PCLMUL static inline __m128i fold(__m128i sum, __m128i powers, __m128i next)
{
    const __m128i low = _mm_clmulepi64_si128(sum, powers, 0x00);
    const __m128i high = _mm_clmulepi64_si128(sum, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

WITH_PCLMUL static inline __m128i load(const uint8_t *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

/* The constants are x**n mod P, bit-reflected and shifted left by one; n is eight times the number
 * of bytes by which they shift, plus and minus 32. The last ones reduce 96 bits to 64; then P and
 * x**64 div P. */
#define BY_256 0x01322d1430, 0x011542778a
#define BY_64 0x01c6e41596, 0x0154442bd4
#define BY_16 0x00ccaa009e, 0x01751997d0
#define BY_8 0, 0x0163cd6124
#define BARRETT 0x01f7011641, 0x01db710641

/* Return the CRC of everything in `sum` and of the `length` bytes that follow, a multiple of 16. */
WITH_PCLMUL static inline uint32_t reduce(__m128i sum, const uint8_t *data, size_t length)
{
    const __m128i by_16 = _mm_set_epi64x(BY_16), by_8 = _mm_set_epi64x(BY_8), barrett = _mm_set_epi64x(BARRETT);
    const __m128i low_words = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i part;

    for (; length >= 16; data += 16, length -= 16)
        sum = fold(sum, by_16, load(data));
    /* Reduce 128 bits to 96, then to 64. */
    sum = _mm_xor_si128(_mm_srli_si128(sum, 8), _mm_clmulepi64_si128(sum, by_16, 0x10));
    part = _mm_clmulepi64_si128(_mm_and_si128(sum, low_words), by_8, 0x00);
    sum = _mm_xor_si128(_mm_srli_si128(sum, 4), part);
    /* Reduce 64 bits to 32 (Barrett). */
    part = _mm_clmulepi64_si128(_mm_and_si128(sum, low_words), barrett, 0x10);
    part = _mm_clmulepi64_si128(_mm_and_si128(part, low_words), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(sum, part), 1);
}

/* `length` must be at least 64 and a multiple of 16. */
WITH_PCLMUL static uint32_t crc_by_folding(uint32_t crc, const uint8_t *data, size_t length)
{
    const __m128i by_64 = _mm_set_epi64x(BY_64), by_16 = _mm_set_epi64x(BY_16);
    __m128i a = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)crc));
    __m128i b = load(data + 16), c = load(data + 32), d = load(data + 48);

    for (data += 64, length -= 64; length >= 64; data += 64, length -= 64) {
        a = fold(a, by_64, load(data));
        b = fold(b, by_64, load(data + 16));
        c = fold(c, by_64, load(data + 32));
        d = fold(d, by_64, load(data + 48));
    }
    return reduce(fold(fold(fold(a, by_16, b), by_16, c), by_16, d), data, length);
}

#define WITH_VPCLMUL __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1")))

WITH_VPCLMUL static inline __m512i fold_four(__m512i sums, __m512i powers, __m512i next)
{
    const __m512i low = _mm512_clmulepi64_epi128(sums, powers, 0x00);
    const __m512i high = _mm512_clmulepi64_epi128(sums, powers, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* the sum of all three */
}

WITH_VPCLMUL static inline __m512i load_four(const uint8_t *at)
{
    return _mm512_loadu_si512((const void *)at);
}

/* The same for at least 256 bytes. */
WITH_VPCLMUL static uint32_t crc_by_wide_folding(uint32_t crc, const uint8_t *data, size_t length)
{
    const __m512i by_256 = _mm512_broadcast_i32x4(_mm_set_epi64x(BY_256));
    const __m512i by_64 = _mm512_broadcast_i32x4(_mm_set_epi64x(BY_64));
    const __m128i by_16 = _mm_set_epi64x(BY_16);
    __m512i a = _mm512_xor_si512(load_four(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = load_four(data + 64), c = load_four(data + 128), d = load_four(data + 192);

    for (data += 256, length -= 256; length >= 256; data += 256, length -= 256) {
        a = fold_four(a, by_256, load_four(data));
        b = fold_four(b, by_256, load_four(data + 64));
        c = fold_four(c, by_256, load_four(data + 128));
        d = fold_four(d, by_256, load_four(data + 192));
    }
    a = fold_four(fold_four(fold_four(a, by_64, b), by_64, c), by_64, d);
    for (; length >= 64; data += 64, length -= 64)
        a = fold_four(a, by_64, load_four(data));
    __m128i sum = fold(_mm512_castsi512_si128(a), by_16, _mm512_extracti32x4_epi32(a, 1));
    sum = fold(sum, by_16, _mm512_extracti32x4_epi32(a, 2));
    return reduce(fold(sum, by_16, _mm512_extracti32x4_epi32(a, 3)), data, length);
}
#endif

uint32_t rmq_crc32(const uint8_t *data, size_t length)
{
    uint32_t crc = 0xFFFFFFFFu;
#ifdef RMQ_HAS_PCLMUL
    if (has_pclmul && length >= FOLD_MIN) {
        const size_t folded = length & ~(size_t)15;
        crc = has_vpclmul && folded >= WIDE_MIN ? crc_by_wide_folding(crc, data, folded)
                                                       : crc_by_folding(crc, data, folded);
        data += folded;
        length -= folded;
    }
#endif
    return ~crc_by_table(crc, data, length) & 0x7FFFFFFFu;
}

uint32_t rmq_crc32_portable(const uint8_t *data, size_t length)
{
    return ~crc_by_table(0xFFFFFFFFu, data, length) & 0x7FFFFFFFu;
}

int rmq_crc32_is_accelerated(void)
{
    return has_pclmul;
}
