/* Reads the headers of all requests that C answers, in both serialize types. Deliberately stricter than
 * rmqpy/remoting/frame.py: Python reads whatever is rare or doubtful. */
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "rmqpy_native.h"

#define BINARY_FIXED 21u /* code, language, version, opaque, flag, remark length, ext length */
#define NUMBER_DIGITS_MAX 18

typedef struct {
    const uint8_t *at, *end;
} cursor;

static const char *const SEND_NAMES[] = {
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch"
};
static const char *const PULL_NAMES[] = {
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis",
    "subscription", "subVersion", "expressionType"
};
static const char *const END_NAMES[] = {
    "producerGroup", "tranStateTableOffset", "commitLogOffset", "commitOrRollback", "msgId"
};
static const char *const OFFSET_NAMES[] = {"topic", "queueId", "consumerGroup", "commitOffset", "timestamp"};
static const char *const VIEW_NAMES[] = {"offset"};
static const char *const KEY_NAMES[] = {
    "topic", "key", "maxNum", "beginTimestamp", "endTimestamp", "_UNIQUE_KEY_QUERY"
};
static const char *const RETURN_NAMES[] = {"offset", "group", "delayLevel", "maxReconsumeTimes"};

static int find_name(const char *const *names, size_t count, const uint8_t *name, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(names[i], name, 1) == 0 && strlen(names[i]) == length && memcmp(names[i], name, length) == 0)
            return (int)i;
    return -1;
}

/* Return the index of the text of an ext field, or -1 if it has none. `length` is not 0. */
static int text_number(int32_t code, const uint8_t *name, size_t length)
{
    switch (code) {
    case 310:
    case 320: return length == 1 && name[0] >= 'a' && name[0] < 'a' + RMQ_TEXT_COUNT ? name[0] - 'a' : -1;
    case 10: return find_name(SEND_NAMES, sizeof SEND_NAMES / sizeof *SEND_NAMES, name, length);
    case 12: return find_name(KEY_NAMES, sizeof KEY_NAMES / sizeof *KEY_NAMES, name, length);
    case 14:
    case 15:
    case 29:
    case 30:
    case 31: return find_name(OFFSET_NAMES, sizeof OFFSET_NAMES / sizeof *OFFSET_NAMES, name, length);
    case 33: return find_name(VIEW_NAMES, sizeof VIEW_NAMES / sizeof *VIEW_NAMES, name, length);
    case 36: return find_name(RETURN_NAMES, sizeof RETURN_NAMES / sizeof *RETURN_NAMES, name, length);
    case 37: return find_name(END_NAMES, sizeof END_NAMES / sizeof *END_NAMES, name, length);
    default: return find_name(PULL_NAMES, sizeof PULL_NAMES / sizeof *PULL_NAMES, name, length);
    }
}

/* Return whether a request of this code may be the model of the next one. */
static int may_be_model(int32_t code)
{
    return code == 310 || code == 320 || code == 10 || code == 11;
}

static int is_fast_path_code(int32_t code)
{
    return may_be_model(code) || code == 36 || code == 37 || code == 12 || code == 14 || code == 15
           || (code >= 29 && code <= 31) || code == 33;
}

static void skip_blanks(cursor *in)
{
    while (in->at < in->end && *in->at <= ' '
           && (*in->at == ' ' || *in->at == '\n' || *in->at == '\r' || *in->at == '\t'))
        in->at++;
}

static inline int accept(cursor *in, uint8_t byte)
{
    if (in->at < in->end && *in->at <= ' ')
        skip_blanks(in);
    if (in->at == in->end || *in->at != byte)
        return 0;
    in->at++;
    return 1;
}

/* Read the rest of a string after its opening quote, including the closing one. */
static inline int read_string_rest(cursor *in, rmq_text *text)
{
    const uint8_t *at = in->at;
    const uint8_t *const end = in->end;
    unsigned non_ascii = 0, escaped = 0;

    for (;;) {
#if defined(__SSE2__)
        while (end - at >= 16) {
            const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
            const unsigned stops = (unsigned)_mm_movemask_epi8(_mm_or_si128(
                _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'))));
            const unsigned above = (unsigned)_mm_movemask_epi8(bytes);
            if (stops == 0) {
                non_ascii |= above;
                at += 16;
                continue;
            }
            const unsigned place = (unsigned)__builtin_ctz(stops);
            non_ascii |= above & ((1u << place) - 1u);
            at += place;
            break;
        }
#endif
        while (at < end && *at != '"' && *at != '\\')
            non_ascii |= *at++ & 0x80u;
        if (at == end)
            return 0;
        if (*at == '"')
            break;
        if (end - at < 2)
            return 0;
        escaped = 1;
        at += 2;
    }
    text->at = in->at;
    text->length = (uint32_t)(at - in->at);
    text->escaped = escaped != 0;
    text->non_ascii = non_ascii != 0;
    in->at = at + 1;
    return 1;
}

/* Read at least one ASCII character; stop at control characters, quotes, and backslashes. */
static inline int read_plain(cursor *in, const uint8_t **text, uint32_t *length)
{
    const uint8_t *at = in->at;

#if defined(__SSE2__)
    while (in->end - at >= 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
        const __m128i quotes = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')),
                                            _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
        const unsigned stops = (unsigned)_mm_movemask_epi8(_mm_or_si128(
            quotes, _mm_cmplt_epi8(bytes, _mm_set1_epi8(' ')))); /* signed: also true above 0x7F */
        if (stops != 0) {
            at += __builtin_ctz(stops);
            break;
        }
        at += 16;
    }
#endif
    while (at < in->end && *at >= ' ' && *at < 0x80u && *at != '"' && *at != '\\')
        at++;
    *text = in->at;
    *length = (uint32_t)(at - in->at);
    in->at = at;
    return *length > 0;
}

static int read_string(cursor *in, rmq_text *text)
{
    return accept(in, '"') && read_string_rest(in, text);
}

/* Read a decimal number in [-maximum - 1, maximum]. Returns 0 if C does not accept it. */
static int read_number(rmq_text text, int64_t maximum, int64_t *value)
{
    const uint32_t negative = text.length > 0 && text.at[0] == '-';
    int64_t number = 0;

    if (text.length == negative || text.length > NUMBER_DIGITS_MAX)
        return 0;
    for (uint32_t i = negative; i < text.length; i++) {
        const uint8_t digit = (uint8_t)(text.at[i] - '0');
        if (digit > 9)
            return 0;
        number = number * 10 + digit;
    }
    if (number > maximum)
        return 0;
    *value = negative ? -number : number;
    return 1;
}

/* Read an unquoted number; `found` is its text. */
static int read_int(cursor *in, rmq_text *found, int32_t *value)
{
    rmq_text text = {NULL, 0, 0, 0};
    int64_t number = 0;

    skip_blanks(in);
    text.at = in->at;
    while (in->at < in->end && ((*in->at >= '0' && *in->at <= '9') || *in->at == '-'))
        in->at++;
    text.length = (uint32_t)(in->at - text.at);
    *found = text;
    if (in->at == in->end || (*in->at != ',' && *in->at != '}' && *in->at != ' '))
        return 0;
    const size_t sign = text.length > 0 && text.at[0] == '-';
    if (text.length - sign > 1 && text.at[sign] == '0')
        return 0;
    if (!read_number(text, INT32_MAX, &number))
        return 0;
    *value = (int32_t)number;
    return 1;
}

/* Store the value of an ext field. `name` is used if it has no index. */
static int store_text(rmq_request *request, int number, rmq_text name, rmq_text value)
{
    rmq_text *target;

    if (number >= 0)
        target = &request->texts[number];
    else if (rmq_is_text(name, "AccessKey"))
        target = &request->access_key;
    else if (rmq_is_text(name, "Signature"))
        target = &request->signature;
    else
        return request->other_fields = 1;
    if (target->at != NULL)
        return 0; /* duplicate */
    *target = value;
    return 1;
}

static inline int may_have_escapes(int32_t code, int number)
{
    return number == (code == 11 ? PULL_EXPRESSION : SEND_PROPERTIES);
}

static int read_ext_fields(cursor *in, rmq_request *request)
{
    const int has_short_names = request->code == 310 || request->code == 320;
    rmq_text name = {NULL, 0, 0, 0}, value;

    if (!accept(in, '{'))
        return 0;
    do {
        const uint8_t *const at = in->at;
        int number;
        if (has_short_names && in->end - at > 5 && at[0] == '"' && at[1] >= 'a' && at[1] < 'a' + RMQ_TEXT_COUNT
            && at[2] == '"' && at[3] == ':' && at[4] == '"') {
            number = at[1] - 'a';
            in->at = at + 5;
            if (!read_string_rest(in, &value))
                return 0;
        } else {
            if (!read_string(in, &name) || name.escaped || name.length == 0 || !accept(in, ':')
                || !read_string(in, &value))
                return 0;
            number = text_number(request->code, name.at, name.length);
        }
        if ((value.escaped && !may_have_escapes(request->code, number)) || !store_text(request, number, name, value))
            return 0;
    } while (accept(in, ','));
    return accept(in, '}');
}

enum { CODE, EXT_FIELDS, OPAQUE, FLAG, VERSION, LANGUAGE, SERIALIZE_TYPE, FIELD_COUNT };

/* Read the value of a header field. */
static int read_field(cursor *in, int field, rmq_request *request)
{
    rmq_text ignored;

    switch (field) {
    case CODE: return read_int(in, &ignored, &request->code) && is_fast_path_code(request->code);
    case EXT_FIELDS: return is_fast_path_code(request->code) && read_ext_fields(in, request);
    case OPAQUE: return read_int(in, &request->opaque_text, &request->opaque);
    case FLAG: return read_int(in, &ignored, &request->flag);
    case VERSION: return read_int(in, &ignored, &request->version);
    default: return read_string(in, &ignored) && !ignored.escaped;
    }
}

static int read_json(cursor *in, rmq_request *request)
{
    static const char *const FIELDS[FIELD_COUNT] = {"code",    "extFields", "opaque",
                                                    "flag",    "version",   "language",
                                                    "serializeTypeCurrentRPC"};
    unsigned seen = 0;

    if (!accept(in, '{'))
        return 0;
    do {
        rmq_text name;
        if (!read_string(in, &name) || name.length == 0 || !accept(in, ':'))
            return 0;
        const int field = find_name(FIELDS, FIELD_COUNT, name.at, name.length);
        if (field < 0 || (field <= VERSION && (seen & 1u << field)) || !read_field(in, field, request))
            return 0;
        seen |= 1u << field;
    } while (accept(in, ','));
    if (!accept(in, '}') || !(seen & 1u << EXT_FIELDS))
        return 0;
    skip_blanks(in);
    return in->at == in->end;
}

/* The texts that differ between two headers of the same producer or consumer. */
enum { VARYING_COUNT = 4 };
static const int VARYING_OF_SENDS[VARYING_COUNT] = {SEND_TOPIC, SEND_QUEUE_ID, SEND_BORN, SEND_PROPERTIES};
static const int VARYING_OF_PULLS[VARYING_COUNT] = {PULL_TOPIC, PULL_QUEUE_ID, PULL_OFFSET, PULL_COMMIT};

static void add_varying(rmq_model *model, int number, rmq_text text)
{
    int place = model->count;

    if (text.at == NULL || (number == SEND_PROPERTIES && model->property_count > 0))
        return;
    for (; place > 0 && model->varying[place - 1].text.at > text.at; place--)
        model->varying[place] = model->varying[place - 1];
    model->varying[place].number = number;
    model->varying[place].text = text;
    model->count++;
}

static inline int accept_same(cursor *in, const uint8_t *from, const uint8_t *to)
{
    const ptrdiff_t length = to - from;

    if (in->end - in->at < length || !rmq_bytes_equal(in->at, from, (size_t)length))
        return 0;
    in->at += length;
    return 1;
}

static int has_name(const rmq_property *known, int count, const rmq_property *item)
{
    for (int i = 0; i < count; i++)
        if (known[i].name_length == item->name_length && memcmp(known[i].name, item->name, item->name_length) == 0)
            return 1;
    return 0;
}

/* Split the properties. Returns their number if all are plain and have different names, otherwise 0. */
static int split_properties(rmq_text text, rmq_property *items)
{
    static const uint8_t MIDDLE[] = "\\u0001", END[] = "\\u0002";
    cursor in = {text.at, text.at + text.length};
    int count = 0;

    for (; in.at < in.end; count++) {
        rmq_property item = {NULL, NULL, 0, 0, 0};
        if (count == RMQ_SPLIT_MAX || !read_plain(&in, &item.name, &item.name_length)
            || !accept_same(&in, MIDDLE, MIDDLE + sizeof MIDDLE - 1)
            || !read_plain(&in, &item.value, &item.value_length)
            || (in.at < in.end && !accept_same(&in, END, END + sizeof END - 1)) || has_name(items, count, &item))
            return 0;
        items[count] = item;
    }
    return count;
}

/* Keep this header as the model of the next one. */
static void remember_model(const cursor *whole, rmq_model *model)
{
    const rmq_request *const request = &model->request;
    const int *const varying = request->code == 11 ? VARYING_OF_PULLS : VARYING_OF_SENDS;
    const rmq_text properties = request->texts[SEND_PROPERTIES];

    model->begin = whole->at;
    model->end = whole->end;
    model->count = model->property_count = 0;
    if (model->can_split_properties && request->code != 11 && properties.at != NULL)
        model->property_count = split_properties(properties, model->properties);
    for (int i = 0; i < VARYING_COUNT; i++)
        add_varying(model, varying[i], request->texts[varying[i]]);
    for (int i = 0; i < model->property_count; i++) {
        const rmq_property *const item = &model->properties[i];
        if (!rmq_is_named(item, "WAIT"))
            add_varying(model, RMQ_FIRST_VALUE + i, (rmq_text){item->value, item->value_length, 0, 0});
    }
    add_varying(model, RMQ_TEXT_COUNT, request->opaque_text);
    add_varying(model, RMQ_SIGNATURE_TEXT, request->signature);
}

/* Read a header by comparison with the model: the same tokens, but other values at the varying
 * positions. Returns 0 if it differs elsewhere. */
static int read_by_model(rmq_model *model, cursor in)
{
    rmq_request *const request = &model->request;
    const uint8_t *from = model->begin;

    for (int i = 0; i < model->count; i++) {
        const int number = model->varying[i].number;
        const rmq_text known = model->varying[i].text;
        if (!accept_same(&in, from, known.at))
            return 0;
        from = known.at + known.length;
        if (number >= RMQ_FIRST_VALUE) {
            rmq_property *const item = &model->properties[number - RMQ_FIRST_VALUE];
            if (!read_plain(&in, &item->value, &item->value_length))
                return 0;
            continue;
        }
        if (number == RMQ_TEXT_COUNT) {
            if (!read_int(&in, &request->opaque_text, &request->opaque))
                return 0;
            continue;
        }
        rmq_text *const text = number == RMQ_SIGNATURE_TEXT ? &request->signature : &request->texts[number];
        if (!read_string_rest(&in, text) || (text->escaped && !may_have_escapes(request->code, number)))
            return 0;
        in.at--; /* the quote is the next byte of the model */
    }
    return accept_same(&in, from, model->end) && in.at == in.end;
}

static int read_binary(const cursor *in, rmq_request *request)
{
    const uint8_t *at = in->at;
    const uint8_t *const end = in->end;

    if (end - at < (ptrdiff_t)BINARY_FIXED || rmq_load32(at + 13) != 0)
        return 0;
    request->code = (int16_t)(uint16_t)(((uint32_t)at[0] << 8) | at[1]);
    request->version = (int16_t)(uint16_t)(((uint32_t)at[3] << 8) | at[4]);
    request->opaque = rmq_load_int(at + 5);
    request->flag = rmq_load_int(at + 9);
    if (!is_fast_path_code(request->code) || rmq_load32(at + 17) != (size_t)(end - at) - BINARY_FIXED)
        return 0;
    at += BINARY_FIXED;
    while (at < end) {
        if (end - at < 2)
            return 0;
        const size_t name_length = ((size_t)at[0] << 8) | at[1];
        const uint8_t *const name = at + 2;
        if (name_length == 0 || name_length + 4 > (size_t)(end - name))
            return 0;
        const uint32_t length = rmq_load32(name + name_length);
        rmq_text value = {name + name_length + 4, length, 0, 0};
        if (length == 0 || length > (size_t)(end - value.at))
            return 0;
        unsigned non_ascii = 0;
        for (uint32_t i = 0; i < length; i++)
            non_ascii |= value.at[i];
        value.non_ascii = non_ascii >= 0x80u;
        const rmq_text named = {name, (uint32_t)name_length, 0, 0};
        if (!store_text(request, text_number(request->code, name, name_length), named, value))
            return 0;
        at = value.at + length;
    }
    return 1;
}

int rmq_read_request(const uint8_t *frame, int64_t length, rmq_model *model)
{
    rmq_request *const request = &model->request;

    if (length < 4)
        return 0;
    const int64_t header_length = rmq_load32(frame) & 0xFFFFFFu;
    cursor in = {frame + 4, frame + 4 + header_length};
    if (header_length > length - 4 || header_length > 0x10000)
        return 0;
    request->body = in.end;
    request->body_length = length - 4 - header_length;
    request->binary = frame[0] == 1;
    if (frame[0] > 1)
        return 0;
    const cursor whole = in;
    request->matches_model = !request->binary && model->begin != NULL && read_by_model(model, in);
    if (request->matches_model)
        return 1;
    model->begin = NULL;
    model->property_count = 0;
    memset(request, 0, offsetof(rmq_request, matches_model));
    if (request->binary)
        return read_binary(&in, request);
    if (!read_json(&in, request))
        return 0;
    if (may_be_model(request->code))
        remember_model(&whole, model);
    return 1;
}

int rmq_read_numbers(const rmq_text *texts, const rmq_number_rule *rules, int count, int64_t *values)
{
    for (int i = 0; i < count; i++) {
        const rmq_text text = texts[rules[i].text];
        values[i] = 0;
        if ((text.at != NULL || rules[i].required) && !read_number(text, rules[i].maximum, &values[i]))
            return 0;
    }
    return 1;
}

/* Decode the escape after a backslash. Returns 0 if it is invalid or not ASCII, which clients need
 * not escape. */
static size_t unescape_one(const uint8_t *at, size_t rest, uint8_t *out)
{
    static const char SHORT[] = "\"\\/bfnrt", MEANING[] = "\"\\/\b\f\n\r\t", HEX[] = "0123456789abcdefABCDEF";

    if (rest == 0)
        return 0;
    const char *const known = *at ? memchr(SHORT, *at, sizeof SHORT - 1) : NULL;
    if (known != NULL) {
        *out = (uint8_t)MEANING[known - SHORT];
        return 1;
    }
    if (rest < 5 || memcmp(at, "u00", 3) != 0 || at[3] < '0' || at[3] > '7')
        return 0;
    const char *const low = at[4] ? memchr(HEX, at[4], sizeof HEX - 1) : NULL;
    if (low == NULL)
        return 0;
    *out = (uint8_t)((at[3] - '0') * 16 + (low - HEX < 16 ? low - HEX : low - HEX - 6));
    return 5;
}

int64_t rmq_unescape(rmq_text text, uint8_t *out)
{
    uint8_t *to = out;
    const uint8_t *at = text.at;
    const uint8_t *const end = text.at + text.length;

    if (text.non_ascii) /* Python reads malformed UTF-8 as Java does */
        for (const uint8_t *place = at; place < end;) {
            uint32_t code = *place;
            place += code < 0x80u ? 1 : rmq_decode_utf8(place, (size_t)(end - place), &code);
            if (code == 0xFFFDu)
                return -1;
        }
    while (at < end) {
        const uint8_t *stop = text.escaped ? memchr(at, '\\', (size_t)(end - at)) : NULL;
        if (stop == NULL)
            stop = end;
        memcpy(to, at, (size_t)(stop - at));
        to += stop - at;
        if (stop == end)
            break;
        const size_t used = unescape_one(stop + 1, (size_t)(end - stop - 1), to++);
        if (used == 0)
            return -1;
        at = stop + 1 + used;
    }
    return to - out;
}
