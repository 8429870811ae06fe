/* Base64: four letters for three bytes, sixteen letters at a time if the processor can shuffle bytes. */
#include <string.h>

#include "rmqpy_native.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <tmmintrin.h>
#define RMQ_HAS_SSSE3
#define WITH_SSSE3 __attribute__((target("ssse3")))
#endif

#define BASE64 64 /* set in the value of every letter, so that 0 means "not a letter" */

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static const uint8_t values[256] = {
    ['A'] = 64, ['B'] = 65, ['C'] = 66, ['D'] = 67, ['E'] = 68, ['F'] = 69, ['G'] = 70, ['H'] = 71, ['I'] = 72,
    ['J'] = 73, ['K'] = 74, ['L'] = 75, ['M'] = 76, ['N'] = 77, ['O'] = 78, ['P'] = 79, ['Q'] = 80, ['R'] = 81,
    ['S'] = 82, ['T'] = 83, ['U'] = 84, ['V'] = 85, ['W'] = 86, ['X'] = 87, ['Y'] = 88, ['Z'] = 89, ['a'] = 90,
    ['b'] = 91, ['c'] = 92, ['d'] = 93, ['e'] = 94, ['f'] = 95, ['g'] = 96, ['h'] = 97, ['i'] = 98, ['j'] = 99,
    ['k'] = 100, ['l'] = 101, ['m'] = 102, ['n'] = 103, ['o'] = 104, ['p'] = 105, ['q'] = 106, ['r'] = 107,
    ['s'] = 108, ['t'] = 109, ['u'] = 110, ['v'] = 111, ['w'] = 112, ['x'] = 113, ['y'] = 114, ['z'] = 115,
    ['0'] = 116, ['1'] = 117, ['2'] = 118, ['3'] = 119, ['4'] = 120, ['5'] = 121, ['6'] = 122, ['7'] = 123,
    ['8'] = 124, ['9'] = 125, ['+'] = 126, ['/'] = 127};

#ifdef RMQ_HAS_SSSE3
WITH_SSSE3 static inline __m128i load(const uint8_t *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

WITH_SSSE3 static inline void store(uint8_t *at, __m128i value)
{
    _mm_storeu_si128((__m128i *)(void *)at, value);
}

/* Encode the first twelve bytes. Each group of four lanes holds three bytes in the order 2 1 3 2;
 * the products move the four 6-bit values to the start of one byte each. A letter is its value plus
 * a distance that depends on the range of the value. */
WITH_SSSE3 static __m128i encode_12_bytes(__m128i bytes)
{
    const __m128i spread = _mm_setr_epi8(1, 0, 2, 1, 4, 3, 5, 4, 7, 6, 8, 7, 10, 9, 11, 10);
    const __m128i distances = _mm_setr_epi8('a' - 26, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52,
                                            '0' - 52, '0' - 52, '0' - 52, '0' - 52, '+' - 62, '/' - 63, 'A', 0, 0);
    const __m128i lanes = _mm_shuffle_epi8(bytes, spread);
    const __m128i odd = _mm_mulhi_epu16(_mm_and_si128(lanes, _mm_set1_epi32(0x0FC0FC00)), _mm_set1_epi32(0x04000040));
    const __m128i even = _mm_mullo_epi16(_mm_and_si128(lanes, _mm_set1_epi32(0x003F03F0)), _mm_set1_epi32(0x01000010));
    const __m128i values16 = _mm_or_si128(odd, even);
    const __m128i capital = _mm_and_si128(_mm_cmpgt_epi8(_mm_set1_epi8(26), values16), _mm_set1_epi8(13));
    const __m128i kinds = _mm_or_si128(_mm_subs_epu8(values16, _mm_set1_epi8(51)), capital);

    return _mm_add_epi8(_mm_shuffle_epi8(distances, kinds), values16);
}

/* Decode sixteen letters to twelve bytes and four undefined ones. Returns 0 if one of them is not a
 * letter: then the table entries of its two halves have a bit in common. The upper half also
 * selects the distance between letter and value. */
WITH_SSSE3 static int decode_16_letters(__m128i text, __m128i *bytes)
{
    const __m128i wrong_low = _mm_setr_epi8(0x15, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x13, 0x1A, 0x1B,
                                            0x1B, 0x1B, 0x1A);
    const __m128i wrong_high = _mm_setr_epi8(0x10, 0x10, 0x01, 0x02, 0x04, 0x08, 0x04, 0x08, 0x10, 0x10, 0x10, 0x10, 0x10,
                                             0x10, 0x10, 0x10);
    const __m128i distances = _mm_setr_epi8(0, 16, 19, 4, -65, -65, -71, -71, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128i halves = _mm_set1_epi8(0x2F); /* bit 5 is harmless: only four bits and bit 7 select */
    const __m128i high = _mm_and_si128(_mm_srli_epi32(text, 4), halves);
    const __m128i wrong = _mm_and_si128(_mm_shuffle_epi8(wrong_low, _mm_and_si128(text, halves)),
                                        _mm_shuffle_epi8(wrong_high, high));
    const __m128i slash = _mm_cmpeq_epi8(text, halves);

    if (_mm_movemask_epi8(_mm_cmpgt_epi8(wrong, _mm_setzero_si128())) != 0)
        return 0;
    const __m128i sixes = _mm_add_epi8(text, _mm_shuffle_epi8(distances, _mm_add_epi8(slash, high)));
    const __m128i twelves = _mm_maddubs_epi16(sixes, _mm_set1_epi32(0x01400140));
    const __m128i words = _mm_madd_epi16(twelves, _mm_set1_epi32(0x00011000));
    *bytes = _mm_shuffle_epi8(words, _mm_setr_epi8(2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, -1, -1, -1, -1));
    return 1;
}
#endif

uint8_t *rmq_put_base64(uint8_t *out, const uint8_t *body, int64_t length)
{
#ifdef RMQ_HAS_SSSE3
    if (__builtin_cpu_supports("ssse3"))
        for (; length >= 16; length -= 12, body += 12, out += 16)
            store(out, encode_12_bytes(load(body)));
#endif
    for (; length >= 3; length -= 3, body += 3, out += 4) {
        out[0] = (uint8_t)letters[body[0] >> 2];
        out[1] = (uint8_t)letters[(body[0] & 3) << 4 | body[1] >> 4];
        out[2] = (uint8_t)letters[(body[1] & 15) << 2 | body[2] >> 6];
        out[3] = (uint8_t)letters[body[2] & 63];
    }
    if (length > 0) {
        const uint8_t second = length == 2 ? body[1] : 0;
        out[0] = (uint8_t)letters[body[0] >> 2];
        out[1] = (uint8_t)letters[(body[0] & 3) << 4 | second >> 4];
        out[2] = length == 2 ? (uint8_t)letters[(second & 15) << 2] : '=';
        out[3] = '=';
        out += 4;
    }
    return out;
}

const uint8_t *rmq_read_base64(const uint8_t *at, const uint8_t *end, uint8_t **out)
{
    uint8_t *to = *out;

#ifdef RMQ_HAS_SSSE3
    if (__builtin_cpu_supports("ssse3"))
        for (__m128i bytes; end - at >= 16 && decode_16_letters(load(at), &bytes); at += 16, to += 12)
            store(to, bytes);
#endif
    for (; end - at >= 4; at += 4) {
        const uint8_t a = values[at[0]], b = values[at[1]], c = values[at[2]], d = values[at[3]];
        if (!(a & b & c & d & BASE64)) {
            if (!(a & b & BASE64) || at[3] != '=' || (c == 0 && at[2] != '='))
                break;
            if (c == 0 ? (b & 15) != 0 : (c & 3) != 0)
                return NULL;
            *to++ = (uint8_t)(a << 2 | (b & 63) >> 4);
            if (c != 0)
                *to++ = (uint8_t)(b << 4 | (c & 63) >> 2);
            at += 4;
            break;
        }
        *to++ = (uint8_t)(a << 2 | (b & 63) >> 4);
        *to++ = (uint8_t)(b << 4 | (c & 63) >> 2);
        *to++ = (uint8_t)(c << 6 | (d & 63));
    }
    *out = to;
    return at;
}
