/* Evaluates SQL92 expressions on the properties of a message, without decoding them. A program is a
 * list of steps for a stack of values; rmqpy/broker/filter/sql_program.py explains the steps, and
 * rmqpy/broker/filter/sql_evaluator.py is the same evaluation in Python. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rmqpy_native.h"

#define STACK_MAX 64
#define DIGITS_MAX 20      /* of an integer (_INTEGER of sql_evaluator.py) */
#define DOUBLE_TEXT_MAX 64 /* longer texts of doubles are converted in Python */
#define BLANK_MAX ' '      /* the characters up to this one surround a number in Java */
#define FIRST_NON_ASCII 0x80u

typedef rmq_sql_value value;

static const value UNKNOWN = {.kind = RMQ_VALUE_NULL};

static value truth(int holds)
{
    return (value){.kind = RMQ_VALUE_TRUTH, .number = holds != 0};
}

static int is_truth(const value *item, int64_t expected)
{
    return item->kind == RMQ_VALUE_TRUTH && item->number == expected;
}

/* Change of the stack's depth by each step, and the values that it needs. */
static const struct {
    int8_t needs, change;
} STEPS[RMQ_STEP_COUNT] = {
    [RMQ_STEP_CONSTANT] = {0, 1}, [RMQ_STEP_PROPERTY] = {0, 1}, [RMQ_STEP_TRUTH] = {1, 0},
    [RMQ_STEP_NOT] = {1, 0},      [RMQ_STEP_NEGATE] = {1, 0},   [RMQ_STEP_IS_NULL] = {1, 0},
    [RMQ_STEP_EQUAL] = {2, -1},   [RMQ_STEP_IN] = {1, 0},       [RMQ_STEP_ORDER] = {2, -1},
    [RMQ_STEP_LOW] = {2, 0},      [RMQ_STEP_SKIP_NULL] = {1, 0}, [RMQ_STEP_SKIP] = {1, 0},
    [RMQ_STEP_COMBINE] = {2, -1},
};

static int is_argument_valid(const rmq_sql_program *program, const rmq_sql_step *step)
{
    switch (step->op) {
    case RMQ_STEP_CONSTANT: return step->argument >= 0 && step->argument < program->constant_count;
    case RMQ_STEP_PROPERTY: return step->argument >= 0 && step->argument < program->name_count;
    case RMQ_STEP_IN:
        return step->argument >= 0 && step->count >= 0 && step->argument <= program->constant_count
            && step->count <= program->constant_count - step->argument;
    default: return 1;
    }
}

int rmq_sql_check(const rmq_sql_program *program)
{
    int8_t depths[RMQ_SQL_STEPS_MAX + 1]; /* after the step before; 0: no step jumps there */
    int depth = 0;

    if (program->step_count < 1 || program->step_count > RMQ_SQL_STEPS_MAX || program->name_count < 0
        || program->name_count > RMQ_SQL_NAMES_MAX || program->constant_count < 0 || program->unit_cost < 1
        || program->unit_cost > RMQ_SQL_WORK_MAX)
        return 0;
    memset(depths, 0, sizeof depths);
    for (int32_t i = 0; i < program->step_count; i++) {
        const rmq_sql_step *const step = &program->steps[i];
        if (step->op < 0 || step->op >= RMQ_STEP_COUNT || (depths[i] != 0 && depths[i] != depth)
            || depth < STEPS[step->op].needs || !is_argument_valid(program, step))
            return 0;
        depth += STEPS[step->op].change;
        if (depth > STACK_MAX)
            return 0;
        if (step->op != RMQ_STEP_SKIP && step->op != RMQ_STEP_SKIP_NULL && step->op != RMQ_STEP_LOW)
            continue;
        /* After a jump, LOW leaves only its result. */
        const int after = step->op == RMQ_STEP_LOW ? depth - 1 : depth;
        if (step->count < 0 || step->count >= program->step_count - i)
            return 0;
        int8_t *const at = &depths[i + 1 + step->count];
        if (*at != 0 && *at != after)
            return 0;
        *at = (int8_t)after;
    }
    return depth == 1 && (depths[program->step_count] == 0 || depths[program->step_count] == depth);
}

/* ---------------------------------------------------------------------------------------- values */

/* Decode the code point at *at and advance it. */
static uint32_t next_code(const value *text, size_t *at)
{
    uint32_t code = text->text[*at];

    *at += code < FIRST_NON_ASCII ? 1 : rmq_decode_utf8(text->text + *at, text->length - *at, &code);
    return code;
}

static int is_text_equal(const value *one, const value *other)
{
    size_t i = 0, k = 0;

    if (one->length == other->length && memcmp(one->text, other->text, one->length) == 0)
        return 1;
    /* Different bytes can be the same text, if they are malformed. */
    while (i < one->length && k < other->length)
        if (next_code(one, &i) != next_code(other, &k))
            return 0;
    return i == one->length && k == other->length;
}

static int is_true_word(const value *text)
{
    if (text->length != 4)
        return 0;
    for (int i = 0; i < 4; i++)
        if ((text->text[i] | 0x20) != "true"[i])
            return 0;
    return 1;
}

static int is_digit(uint8_t byte)
{
    return byte >= '0' && byte <= '9';
}

/* Convert a text as Integer.valueOf or Long.valueOf does. Only Python knows the digits of other scripts. */
static int to_integer(const value *text, int64_t limit, value *found)
{
    const uint8_t *at = text->text, *const end = at + text->length;
    const int is_negative = at < end && *at == '-';
    uint64_t number = 0;

    at += is_negative || (at < end && *at == '+');
    if (at == end)
        return RMQ_MATCH_FAILED;
    for (int digits = 0; at < end; at++, digits++) {
        if (*at >= FIRST_NON_ASCII)
            return RMQ_MATCH_PYTHON;
        if (!is_digit(*at))
            return RMQ_MATCH_FAILED;
        if (digits >= DIGITS_MAX || number > (uint64_t)INT64_MAX / 10 + 1)
            number = UINT64_MAX; /* too large, unless a later byte is not a digit */
        else
            number = number * 10 + (uint64_t)(*at - '0');
    }
    if (number > (uint64_t)limit + (uint64_t)is_negative)
        return RMQ_MATCH_FAILED;
    found->number = (int64_t)(is_negative ? 0 - number : number);
    return RMQ_OK;
}

static const uint8_t *skip_digits(const uint8_t *at, const uint8_t *end)
{
    while (at < end && is_digit(*at))
        at++;
    return at;
}

/* Return the end of the decimal number that starts at `at`, or NULL. */
static const uint8_t *find_number_end(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *const point = skip_digits(at, end);
    const uint8_t *stop = point;

    if (stop < end && *stop == '.')
        stop = skip_digits(stop + 1, end);
    if (stop == at || (stop == at + 1 && point == at))
        return NULL;
    if (stop < end && (*stop | 0x20) == 'e') {
        at = stop + 1;
        at += at < end && (*at == '+' || *at == '-');
        stop = skip_digits(at, end);
        if (stop == at)
            return NULL;
    }
    return stop;
}

/* Convert a text as Double.valueOf does. */
static int to_double(const value *text, double *found)
{
    const uint8_t *begin = text->text, *end = begin + text->length;
    char copy[DOUBLE_TEXT_MAX + 1];

    while (begin < end && *begin <= BLANK_MAX)
        begin++;
    while (begin < end && end[-1] <= BLANK_MAX)
        end--;
    const int has_sign = begin < end && (*begin == '+' || *begin == '-');
    const rmq_text word = {begin + has_sign, (uint32_t)(end - begin - has_sign), 0, 0};
    if (rmq_is_text(word, "NaN") || rmq_is_text(word, "Infinity")) {
        *found = word.length == 3 ? (double)NAN : *begin == '-' ? -(double)INFINITY : (double)INFINITY;
        return RMQ_OK;
    }
    if (word.length > 1 && word.at[0] == '0' && (word.at[1] | 0x20) == 'x')
        return RMQ_MATCH_PYTHON; /* a hexadecimal double */
    const uint8_t *const stop = find_number_end(word.at, end);
    if (stop == NULL || end - stop > 1 || (end - stop == 1 && (*stop | 0x20) != 'f' && (*stop | 0x20) != 'd'))
        return RMQ_MATCH_FAILED;
    if (stop - begin > DOUBLE_TEXT_MAX)
        return RMQ_MATCH_PYTHON;
    memcpy(copy, begin, (size_t)(stop - begin));
    copy[stop - begin] = 0;
    char *read = copy;
    *found = strtod(copy, &read);
    return read - copy == stop - begin ? RMQ_OK : RMQ_MATCH_PYTHON; /* the locale has another decimal point */
}

/* Convert a text to the type of the number it is compared with. */
static int convert(const value *text, const value *like, value *found)
{
    *found = (value){.kind = like->kind};
    if (like->kind == RMQ_VALUE_DOUBLE)
        return to_double(text, &found->real);
    return to_integer(text, like->kind == RMQ_VALUE_LONG ? INT64_MAX : INT32_MAX, found);
}

/* Compare as Double.compareTo does: NaN equals itself and is the greatest, -0.0 is less than 0.0. */
static int compare_doubles(double one, double other)
{
    if (isnan(one) || isnan(other))
        return (isnan(one) != 0) - (isnan(other) != 0);
    if (one == other)
        return (signbit(other) != 0) - (signbit(one) != 0);
    return one > other ? 1 : -1;
}

static double double_of(const value *number)
{
    return number->kind == RMQ_VALUE_DOUBLE ? number->real : (double)number->number;
}

static int compare_numbers(const value *one, const value *other)
{
    if (one->kind == RMQ_VALUE_DOUBLE || other->kind == RMQ_VALUE_DOUBLE)
        return compare_doubles(double_of(one), double_of(other));
    return (one->number > other->number) - (one->number < other->number);
}

/* Compare two values that are not null; texts only for equality. */
static int compare(const value *one, const value *other, int *sign)
{
    const int is_text = one->kind == RMQ_VALUE_TEXT, other_is_text = other->kind == RMQ_VALUE_TEXT;
    value converted;
    int result = RMQ_OK;

    if (one->kind == RMQ_VALUE_TRUTH || other->kind == RMQ_VALUE_TRUTH) {
        if (other_is_text)
            return RMQ_MATCH_FAILED;
        if (other->kind != RMQ_VALUE_TRUTH || !(is_text || one->kind == RMQ_VALUE_TRUTH))
            *sign = -1;
        else
            *sign = (is_text ? is_true_word(one) : (int)one->number) - (int)other->number;
    } else if (is_text && other_is_text) {
        *sign = !is_text_equal(one, other);
    } else if (is_text || other_is_text) {
        result = is_text ? convert(one, other, &converted) : convert(other, one, &converted);
        if (result == RMQ_OK)
            *sign = is_text ? compare_numbers(&converted, other) : compare_numbers(one, &converted);
    } else {
        *sign = compare_numbers(one, other);
    }
    return result;
}

static int compare_as_doubles(const value *one, const value *other, int *sign)
{
    double left, right;
    int result = to_double(one, &left);

    if (result == RMQ_OK)
        result = to_double(other, &right);
    if (result == RMQ_OK)
        *sign = compare_doubles(left, right);
    return result;
}

/* ----------------------------------------------------------------------------------------- steps */

static int is_in_order(int32_t order, int sign)
{
    switch (order) {
    case RMQ_ORDER_GREATER: return sign > 0;
    case RMQ_ORDER_GREATER_EQUAL: return sign >= 0;
    case RMQ_ORDER_LESS: return sign < 0;
    default: return sign <= 0;
    }
}

/* Set `found` to whether the values are in this order; null is unknown. */
static int order(const value *one, const value *other, int32_t expected, value *found)
{
    int sign = 0, result = RMQ_OK;

    *found = UNKNOWN;
    if (one->kind == RMQ_VALUE_NULL || other->kind == RMQ_VALUE_NULL)
        return RMQ_OK;
    if (one->kind == RMQ_VALUE_TEXT && other->kind == RMQ_VALUE_TEXT)
        result = compare_as_doubles(one, other, &sign);
    else
        result = compare(one, other, &sign);
    *found = truth(is_in_order(expected, sign));
    return result;
}

static int equal(value *one, const value *other)
{
    int sign = 0, result = RMQ_OK;

    if (one->kind == RMQ_VALUE_NULL || other->kind == RMQ_VALUE_NULL) {
        if (one->kind != RMQ_VALUE_NULL)
            *one = truth(0);
        else if (other->kind == RMQ_VALUE_NULL)
            *one = truth(1);
        return RMQ_OK;
    }
    result = compare(one, other, &sign);
    *one = truth(sign == 0);
    return result;
}

static void negate(value *item)
{
    if (item->kind == RMQ_VALUE_DOUBLE)
        item->real = -item->real;
    else if (item->kind == RMQ_VALUE_INT || item->kind == RMQ_VALUE_LONG)
        item->number = (int64_t)(0 - (uint64_t)item->number);
    else
        *item = UNKNOWN;
}

static int is_any_of(const value *item, const value *texts, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (item->kind == RMQ_VALUE_TEXT && texts[i].kind == RMQ_VALUE_TEXT && is_text_equal(item, &texts[i]))
            return 1;
    return 0;
}

/* Find the values of the named properties; of equal names the last one counts. */
static void find_values(const rmq_sql_program *program, const uint8_t *at, const uint8_t *end, value *values)
{
    rmq_property item;

    for (int32_t i = 0; i < program->name_count; i++)
        values[i] = UNKNOWN;
    while (rmq_next_property(&at, end, &item))
        for (int32_t i = 0; i < program->name_count; i++) {
            const value *const name = &program->names[i];
            if (name->length == item.name_length && rmq_bytes_equal(name->text, item.name, item.name_length))
                values[i] = (value){.kind = RMQ_VALUE_TEXT, .length = item.value_length, .text = item.value};
        }
}

int rmq_sql_match(const rmq_sql_program *program, const uint8_t *properties, int64_t length)
{
    value values[RMQ_SQL_NAMES_MAX], stack[STACK_MAX], *top = stack - 1;
    value ordered;

    find_values(program, properties, properties + length, values);
    for (int32_t i = 0; i < program->step_count; i++) {
        const rmq_sql_step *const step = &program->steps[i];
        int result = RMQ_OK;
        switch (step->op) {
        case RMQ_STEP_CONSTANT: *++top = program->constants[step->argument]; break;
        case RMQ_STEP_PROPERTY: *++top = values[step->argument]; break;
        case RMQ_STEP_TRUTH: *top = top->kind == RMQ_VALUE_NULL ? UNKNOWN : truth(0); break;
        case RMQ_STEP_NOT: *top = top->kind == RMQ_VALUE_TRUTH ? truth(!top->number) : UNKNOWN; break;
        case RMQ_STEP_NEGATE: negate(top); break;
        case RMQ_STEP_IS_NULL: *top = truth(top->kind == RMQ_VALUE_NULL); break;
        case RMQ_STEP_IN:
            if (top->kind != RMQ_VALUE_NULL)
                *top = truth(is_any_of(top, program->constants + step->argument, step->count));
            break;
        case RMQ_STEP_EQUAL:
            top--;
            result = equal(top, top + 1);
            break;
        case RMQ_STEP_ORDER:
            top--;
            result = order(top, top + 1, step->argument, &ordered);
            *top = ordered;
            break;
        case RMQ_STEP_LOW:
            result = order(top - 1, top, step->argument, &ordered);
            *top = top[-1];
            top[-1] = ordered;
            if (is_truth(top - 1, step->argument == RMQ_ORDER_LESS)) {
                top--;
                i += step->count;
            }
            break;
        case RMQ_STEP_SKIP_NULL: i += top->kind == RMQ_VALUE_NULL ? step->count : 0; break;
        case RMQ_STEP_SKIP: i += is_truth(top, step->argument) ? step->count : 0; break;
        default: /* RMQ_STEP_COMBINE: neither value is the decisive one unless the last one is */
            top--;
            if (is_truth(top, !step->argument) || is_truth(top + 1, step->argument))
                *top = top[1];
        }
        if (result != RMQ_OK)
            return result;
    }
    return top->kind != RMQ_VALUE_TRUTH ? RMQ_MATCH_UNKNOWN : top->number ? RMQ_MATCH_TRUE : RMQ_MATCH_FALSE;
}
