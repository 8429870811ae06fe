/* Who sent a request: the signature of access control 1.0 (rmqpy/acl/signature.py), HMAC-SHA1 in Base64 over the
 * values of all ext fields in the order of their names, then the body. Whether who has signed may do what he asks for
 * was learned from Python, a bit for each account. Nobody is refused here: what is not allowed is cold. */
#include <string.h>

#include "rmqpy_native.h"

#define BLOCK 64u
#define DIGEST 20u
#define INNER 0x36u
#define OUTER 0x5Cu

typedef struct {
    uint32_t state[5];
    uint64_t length;
    uint8_t block[BLOCK];
} sha1;

static const uint32_t FIRST[5] = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u};

/* Which text follows which, by name: those of code 10, and of a pull. Those of 310 and 320 stand in order. */
static const uint8_t SEND_ORDER[RMQ_TEXTS] = {
    SEND_BATCH, SEND_BORN, SEND_DEFAULT_TOPIC, SEND_DEFAULT_QUEUES, SEND_FLAG, SEND_MAX_RECONSUME, SEND_GROUP,
    SEND_PROPERTIES, SEND_QUEUE_ID, SEND_RECONSUME, SEND_SYS_FLAG, SEND_TOPIC, SEND_UNIT, SEND_BROKER
};
static const uint8_t PULL_ORDER[RMQ_TEXTS] = {
    PULL_COMMIT, PULL_GROUP, PULL_TYPE, PULL_COUNT, PULL_QUEUE_ID, PULL_OFFSET, PULL_VERSION, PULL_EXPRESSION,
    PULL_SUSPEND, PULL_SYS_FLAG, PULL_TOPIC, 11, 12, 13
};

static void take_bytes(sha1 *hash, const uint8_t *at, size_t length)
{
    const size_t held = hash->length % BLOCK;

    if (length == 0)
        return;
    hash->length += length;
    if (held != 0) {
        const size_t used = length < BLOCK - held ? length : BLOCK - held;
        memcpy(hash->block + held, at, used);
        if (held + used < BLOCK)
            return;
        rmq_take_blocks(hash->state, hash->block, 1);
        at += used;
        length -= used;
    }
    rmq_take_blocks(hash->state, at, length / BLOCK);
    if (length % BLOCK != 0)
        memcpy(hash->block, at + length - length % BLOCK, length % BLOCK);
}

static void finish(sha1 *hash, uint8_t *digest)
{
    static const uint8_t PADDING[BLOCK] = {0x80};
    const uint64_t bits = hash->length * 8;
    uint8_t length[8];

    take_bytes(hash, PADDING, 1 + (BLOCK + 55 - hash->length % BLOCK) % BLOCK);
    rmq_store_long(length, (int64_t)bits);
    take_bytes(hash, length, sizeof length);
    for (unsigned i = 0; i < 5; i++)
        rmq_store32(digest + 4 * i, hash->state[i]);
}

/* Begin with what another hash has taken: whole blocks. */
static void resume(sha1 *hash, const uint32_t *state, uint64_t length)
{
    memcpy(hash->state, state, sizeof hash->state);
    hash->length = length;
}

void rmq_set_secret(rmq_account *account, const uint8_t *secret, size_t length)
{
    uint8_t key[BLOCK] = {0}, block[BLOCK];
    sha1 hash;

    if (length > BLOCK) {
        resume(&hash, FIRST, 0);
        take_bytes(&hash, secret, length);
        finish(&hash, key);
    } else {
        memcpy(key, secret, length);
    }
    memcpy(account->inner, FIRST, sizeof account->inner);
    memcpy(account->outer, FIRST, sizeof account->outer);
    for (unsigned i = 0; i < BLOCK; i++)
        block[i] = key[i] ^ INNER;
    rmq_take_blocks(account->inner, block, 1);
    for (unsigned i = 0; i < BLOCK; i++)
        block[i] = key[i] ^ OUTER;
    rmq_take_blocks(account->outer, block, 1);
}

static int find_account(const rmq_core *core, rmq_text key)
{
    for (int32_t i = 0; key.at != NULL && i < core->account_count; i++)
        if (core->accounts[i].key_length == key.length && memcmp(core->accounts[i].key, key.at, key.length) == 0)
            return i;
    return -1;
}

void rmq_sign(const rmq_account *account, const rmq_slice *pieces, size_t count, uint8_t *text)
{
    uint8_t digest[DIGEST];
    sha1 hash;

    resume(&hash, account->inner, BLOCK);
    for (size_t i = 0; i < count; i++)
        take_bytes(&hash, pieces[i].at, pieces[i].length);
    finish(&hash, digest);
    resume(&hash, account->outer, BLOCK);
    take_bytes(&hash, digest, DIGEST);
    finish(&hash, digest);
    rmq_put_base64(text, digest, DIGEST);
}

/* The texts in the order of their names; 0: one is not signed as it stands there. */
static int list_texts(const rmq_request *request, rmq_slice properties, rmq_slice *pieces)
{
    const uint8_t *const order = request->code == 10 ? SEND_ORDER : request->code == 11 ? PULL_ORDER : NULL;

    for (unsigned i = 0; i < RMQ_TEXTS; i++) {
        const unsigned number = order != NULL ? order[i] : i;
        const rmq_text text = request->texts[number];
        const int unescaped = number == SEND_PROPERTIES && properties.at != NULL;
        if (!unescaped && (text.high || text.escaped))
            return 0;
        pieces[i] = unescaped ? properties : (rmq_slice){text.at, text.length};
    }
    return 1;
}

int rmq_may(const rmq_core *core, const rmq_request *request, rmq_slice properties, uint64_t accounts)
{
    const rmq_text given = request->signature, key = request->access_key;
    rmq_slice pieces[RMQ_TEXTS + 2];
    uint8_t text[RMQ_SIGNATURE_LENGTH];
    unsigned differing = 0;

    if (!core->guarded)
        return RMQ_IS_HOT;
    pieces[0] = (rmq_slice){key.at, key.length};
    const int number = find_account(core, key);
    if (number < 0 || !(accounts >> number & 1u) || request->other_fields || given.length != RMQ_SIGNATURE_LENGTH
        || !list_texts(request, properties, pieces + 1))
        return RMQ_IS_COLD;
    pieces[RMQ_TEXTS + 1] = (rmq_slice){request->body, (size_t)request->body_length};
    rmq_sign(&core->accounts[number], pieces, RMQ_TEXTS + 2, text);
    for (unsigned i = 0; i < RMQ_SIGNATURE_LENGTH; i++)
        differing |= text[i] ^ given.at[i];
    return differing == 0 ? RMQ_IS_HOT : RMQ_IS_COLD;
}
