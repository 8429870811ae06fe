/* Properties of a message (name 0x01 value 0x02 ...), and Java's hashes of texts. */
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "rmqpy_native.h"

#define NAME_VALUE_SEPARATOR 1
#define PROPERTY_SEPARATOR 2
#define REPLACEMENT 0xFFFDu
#define FORM_BLOCK 64

#if defined(__SSE2__)
/* Return a bit for each of sixteen bytes that is `target`. */
static inline unsigned bytes_equal_to(const uint8_t *sixteen, uint8_t target)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)sixteen);

    return (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8((char)target)));
}
#endif

/* Return the first `target` in [at, end), or `end`. Texts are short, so this avoids a call. */
static inline const uint8_t *find_byte(const uint8_t *at, const uint8_t *end, uint8_t target)
{
#if defined(__SSE2__)
    if (end - at >= 16) {
        for (; end - at > 16; at += 16) {
            const unsigned found = bytes_equal_to(at, target);
            if (found != 0)
                return at + __builtin_ctz(found);
        }
        /* The last sixteen bytes again cover some that were looked at. */
        const unsigned found = bytes_equal_to(end - 16, target);
        return found != 0 ? end - 16 + __builtin_ctz(found) : end;
    }
#endif
    while (at < end && *at != target)
        at++;
    return at;
}

int rmq_next_property(const uint8_t **at, const uint8_t *end, rmq_property *found)
{
    while (*at < end) {
        const uint8_t *const piece = *at;
        const uint8_t *const stop = find_byte(piece, end, PROPERTY_SEPARATOR);
        const uint8_t *const middle = find_byte(piece, stop, NAME_VALUE_SEPARATOR);
        *at = stop < end ? stop + 1 : end;
        if (middle > piece && middle + 1 < stop) {
            *found = (rmq_property){piece, middle + 1, (uint32_t)(middle - piece), (uint32_t)(stop - middle - 1), 0};
            return 1;
        }
    }
    return 0;
}

/* Bit masks of 64 bytes: separators after names, and after properties; and bytes that are not ASCII. */
typedef struct {
    uint64_t names, properties, non_ascii;
} byte_marks;

static inline byte_marks mark(const uint8_t *at)
{
    byte_marks marks = {0, 0, 0};

#if defined(__SSE2__)
    for (int i = 0; i < 64; i += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(at + i));
        marks.names |= (uint64_t)bytes_equal_to(at + i, NAME_VALUE_SEPARATOR) << i;
        marks.properties |= (uint64_t)bytes_equal_to(at + i, PROPERTY_SEPARATOR) << i;
        marks.non_ascii |= (uint64_t)(uint32_t)_mm_movemask_epi8(bytes) << i;
    }
#else
    for (int i = 0; i < 64; i++) {
        marks.names |= (uint64_t)(at[i] == NAME_VALUE_SEPARATOR) << i;
        marks.properties |= (uint64_t)(at[i] == PROPERTY_SEPARATOR) << i;
        marks.non_ascii |= (uint64_t)(at[i] >> 7) << i;
    }
#endif
    return marks;
}

/* Mark the last bytes, after which nothing can be read. */
static byte_marks mark_rest(const uint8_t *at, size_t left)
{
    uint8_t rest[64] = {0};

    return mark(memcpy(rest, at, left));
}

/* Note a property if it is one that is looked for; an empty value does not count. */
static inline void note_property(const uint8_t *name, const uint8_t *separator, const uint8_t *end,
                                 rmq_known_properties *known)
{
    const rmq_slice value = {separator + 1, (size_t)(end - separator - 1)};

    if (value.length == 0)
        return;
    switch (separator - name) {
    case 4:
        if (memcmp(name, "TAGS", 4) == 0)
            known->tags = value;
        else if (memcmp(name, "KEYS", 4) == 0)
            known->keys = value;
        break;
    case 5:
        if (memcmp(name, "DELAY", 5) == 0)
            known->delay = value;
        break;
    case 8:
        if (memcmp(name, "UNIQ_KEY", 8) == 0)
            known->uniq_key = value;
        break;
    }
}

int rmq_find_properties(rmq_slice raw, const uint8_t *limit, rmq_known_properties *known)
{
    const uint8_t *const end = raw.at + raw.length;
    const uint8_t *name = raw.at, *separator = NULL; /* of the current property */
    uint64_t non_ascii = 0, faults = 0, first = 1; /* does a property start with the step? */

    *known = (rmq_known_properties){{NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}};
    for (const uint8_t *at = raw.at; at < end; at += 64) {
        const size_t left = (size_t)(end - at);
        const uint64_t within = left < 64 ? (UINT64_C(1) << left) - 1 : UINT64_MAX;
        const byte_marks marks = limit - at >= 64 ? mark(at) : mark_rest(at, left);
        uint64_t names = marks.names & within, ends = marks.properties & within;
        faults |= names & (ends << 1 | first);
        first = ends >> 63;
        non_ascii |= marks.non_ascii & within;
        for (; ends != 0; ends &= ends - 1) {
            const uint64_t until = ends ^ (ends - 1); /* to the lowest end, inclusive */
            const uint8_t *const stop = at + __builtin_ctzll(ends);
            if (separator == NULL && (names & until) != 0)
                separator = at + __builtin_ctzll(names);
            if (separator != NULL)
                note_property(name, separator, stop, known);
            else
                faults = 1;
            names &= ~until;
            name = stop + 1;
            separator = NULL;
        }
        if (separator == NULL && names != 0)
            separator = at + __builtin_ctzll(names);
    }
    if (separator != NULL)
        note_property(name, separator, end, known);
    else if (name < end)
        faults = 1;
    return (faults == 0 ? RMQ_WELL_FORMED : 0) | (non_ascii == 0 ? RMQ_ASCII : 0);
}

void rmq_note_form(rmq_slice raw, rmq_properties_form *form)
{
    int in_name = 1;

    memset(form, 0, sizeof *form);
    form->length = raw.length;
    for (size_t i = 0; i < raw.length && i < RMQ_FORM_BYTES_MAX; i++) {
        const int is_separator = raw.at[i] == NAME_VALUE_SEPARATOR || raw.at[i] == PROPERTY_SEPARATOR;
        *(in_name || is_separator ? &form->fixed[i] : &form->free[i]) = 0xFF;
        if (is_separator)
            in_name = raw.at[i] == PROPERTY_SEPARATOR;
    }
}

int rmq_has_form(const uint8_t *raw, const uint8_t *model, const rmq_properties_form *form, const uint8_t *limit)
{
    uint8_t faults = 0;

    if (form->length > RMQ_FORM_BYTES_MAX)
        return 0;
    for (size_t at = 0; at < form->length; at += FORM_BLOCK, raw += FORM_BLOCK, model += FORM_BLOCK) {
        if (limit - raw < FORM_BLOCK)
            return 0;
        for (size_t i = 0; i < FORM_BLOCK; i++) {
            const uint8_t is_separator = raw[i] == NAME_VALUE_SEPARATOR || raw[i] == PROPERTY_SEPARATOR ? 0xFF : 0;
            faults |= ((raw[i] ^ model[i]) & form->fixed[at + i]) | (is_separator & form->free[at + i]);
        }
    }
    return faults == 0;
}

/* Of equal names, keeps the first position and the last value, like rmqpy/codec/properties.py. */
int rmq_read_properties(const uint8_t *raw, int64_t length, rmq_properties *found)
{
    const uint8_t *const end = raw + length;
    rmq_property item;

    found->count = 0;
    while (rmq_next_property(&raw, end, &item)) {
        int place = 0;
        for (uint32_t i = 0; i < item.name_length; i++) {
            if (item.name[i] >= 0x80u)
                return 0;
            item.hash = item.hash * 31u + item.name[i];
        }
        while (place < found->count
               && (found->list[place].hash != item.hash || found->list[place].name_length != item.name_length
                   || memcmp(found->list[place].name, item.name, item.name_length) != 0))
            place++;
        if (place == RMQ_PROPERTIES_MAX - RMQ_PROPERTIES_ADDED)
            return 0;
        if (place < found->count)
            item.name = found->list[place].name;
        else
            found->count++;
        found->list[place] = item;
    }
    return 1;
}

const rmq_property *rmq_find_property(const rmq_properties *found, const char *name)
{
    for (int i = 0; i < found->count; i++)
        if (rmq_is_named(&found->list[i], name))
            return &found->list[i];
    return NULL;
}

rmq_slice rmq_put_number(uint8_t *end, int64_t number)
{
    uint8_t *at = end;

    do
        *--at = (uint8_t)('0' + number % 10);
    while ((number /= 10) > 0);
    return (rmq_slice){at, (size_t)(end - at)};
}

void rmq_set_property(rmq_properties *found, const char *name, rmq_slice value)
{
    const uint32_t length = (uint32_t)strlen(name);
    int place = 0;

    while (place < found->count && !rmq_is_named(&found->list[place], name))
        place++;
    found->count += place == found->count;
    found->list[place] = (rmq_property){(const uint8_t *)name, value.at, length, (uint32_t)value.length,
                                        rmq_java_hash(0, (const uint8_t *)name, length)};
}

/* Sort in the order of Java's HashMap (rmqpy/remoting/java_values.py). */
void rmq_order_properties(rmq_properties *found)
{
    uint32_t buckets = 16;

    while ((uint32_t)found->count * 4 > buckets * 3)
        buckets *= 2;
    for (int i = 1; i < found->count; i++) {
        const rmq_property item = found->list[i];
        const uint32_t bucket = (item.hash ^ item.hash >> 16) & (buckets - 1);
        int to = i;
        for (; to > 0; to--) {
            const uint32_t other = found->list[to - 1].hash;
            if (((other ^ other >> 16) & (buckets - 1)) <= bucket)
                break;
            found->list[to] = found->list[to - 1];
        }
        found->list[to] = item;
    }
}

uint8_t *rmq_put_properties(uint8_t *out, const rmq_properties *found, int keeps_wait)
{
    uint8_t *const start = out;

    for (int i = 0; i < found->count; i++) {
        const rmq_property *const item = &found->list[i];
        if (!keeps_wait && rmq_is_named(item, "WAIT"))
            continue;
        if (out > start)
            *out++ = PROPERTY_SEPARATOR;
        rmq_copy(out, item->name, item->name_length);
        out += item->name_length;
        *out++ = NAME_VALUE_SEPARATOR;
        rmq_copy(out, item->value, item->value_length);
        out += item->value_length;
    }
    return out;
}

int64_t rmq_properties_size_max(const rmq_core *core, int64_t raw_length)
{
    return raw_length + core->cluster_length + (int64_t)sizeof "CLUSTER" + 2;
}

static int is_continuation(uint8_t byte)
{
    return (byte & 0xC0u) == 0x80u;
}

/* After some first bytes, the second byte of a sequence has a narrower range. */
static int is_second(uint8_t first, uint8_t second)
{
    switch (first) {
    case 0xE0: return second >= 0xA0u && second <= 0xBFu;
    case 0xF0: return second >= 0x90u && second <= 0xBFu;
    case 0xF4: return second >= 0x80u && second <= 0x8Fu;
    default: return is_continuation(second);
    }
}

size_t rmq_decode_utf8(const uint8_t *at, size_t length, uint32_t *code)
{
    const uint8_t first = at[0];
    const size_t target = first < 0xC2u ? 1u : first < 0xE0u ? 2u : first < 0xF0u ? 3u : first < 0xF5u ? 4u : 1u;
    uint32_t value = first & (0x7Fu >> target);

    *code = REPLACEMENT;
    if (target == 1)
        return 1;
    if (length < 2 || !is_second(first, at[1]))
        return 1;
    value = (value << 6) | (at[1] & 0x3Fu);
    for (size_t i = 2; i < target; i++) {
        if (length <= i || !is_continuation(at[i]))
            return i;
        value = (value << 6) | (at[i] & 0x3Fu);
    }
    if (value < 0xD800u || value > 0xDFFFu)
        *code = value;
    return target;
}

/* Powers of 31: they make the terms of the sum independent of each other. */
static const uint32_t POWERS[] = {1u,        31u,        961u,        29791u,    923521u,
                                  28629151u, 887503681u, 1742810335u, 2487512833u};

#if defined(__SSE2__)
/* Continue the hash with sixteen ASCII characters: each four of them become one sum. */
static inline uint32_t hash_sixteen(uint32_t hash, __m128i text)
{
    const __m128i zero = _mm_setzero_si128(), twos = _mm_set1_epi32(1 << 16 | 31), fours = _mm_set1_epi32(1 << 16 | 961);
    const __m128i low = _mm_madd_epi16(_mm_unpacklo_epi8(text, zero), twos);
    const __m128i high = _mm_madd_epi16(_mm_unpackhi_epi8(text, zero), twos);
    const __m128i sums = _mm_madd_epi16(_mm_packs_epi32(low, high), fours);
    const __m128i even = _mm_mul_epu32(sums, _mm_set_epi32(0, (int)POWERS[4], 0, (int)4001564289u));
    const __m128i odd = _mm_mul_epu32(_mm_srli_epi64(sums, 32), _mm_set_epi32(0, 1, 0, (int)POWERS[8]));
    const __m128i both = _mm_add_epi64(even, odd);

    return hash * 1353309697u + (uint32_t)_mm_cvtsi128_si32(_mm_add_epi64(both, _mm_unpackhi_epi64(both, both)));
}
#endif

/* Continue the hash with eight ASCII characters. */
static uint32_t hash_eight(uint32_t hash, const uint8_t *text)
{
    uint32_t sum = hash * POWERS[8];

    for (int i = 0; i < 8; i++)
        sum += text[i] * POWERS[7 - i];
    return sum;
}

uint32_t rmq_java_hash(uint32_t hash, const uint8_t *text, size_t length)
{
    size_t i = 0;

#if defined(__SSE2__)
    for (; length - i >= 16; i += 16) {
        const __m128i sixteen = _mm_loadu_si128((const __m128i *)(const void *)(text + i));
        if (_mm_movemask_epi8(sixteen) != 0)
            break;
        hash = hash_sixteen(hash, sixteen);
    }
#endif
    for (; length - i >= 8 && rmq_is_ascii_word(text + i); i += 8)
        hash = hash_eight(hash, text + i);
    while (i < length) {
        uint32_t code = text[i];
        i += code < 0x80u ? 1 : rmq_decode_utf8(text + i, length - i, &code);
        if (code >= 0x10000u) {
            hash = hash * 31u + (0xD800u | ((code - 0x10000u) >> 10));
            code = 0xDC00u | ((code - 0x10000u) & 0x3FFu);
        }
        hash = hash * 31u + code;
    }
    return hash;
}

int64_t rmq_index_key_hash(uint32_t topic_hash, const uint8_t *key, size_t key_length)
{
    const uint32_t hash = rmq_java_hash(topic_hash * 31u + '#', key, key_length);
    const int64_t value = (int32_t)hash < 0 ? -(int64_t)(int32_t)hash : (int64_t)hash;

    return value > INT32_MAX ? 0 : value;
}
