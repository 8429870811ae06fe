/* Signatures of access control 1.0 (rmqpy/acl/signature.py): HMAC-SHA1 in Base64 over the values of
 * all ext fields in the order of their names, and then the body. Python has decided what each
 * account may do, and C has a bit per account. Nothing is refused here: Python handles what C does
 * not permit. */
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

static const uint32_t INITIAL_STATE[5] = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u};

/* The texts in the order of their names: of code 10, and of pulls. Those of 310 and 320 are in order. */
static const uint8_t SEND_ORDER[RMQ_TEXT_COUNT] = {
    SEND_BATCH, SEND_BORN, SEND_DEFAULT_TOPIC, SEND_DEFAULT_QUEUES, SEND_FLAG, SEND_MAX_RECONSUME, SEND_GROUP,
    SEND_PROPERTIES, SEND_QUEUE_ID, SEND_RECONSUME, SEND_SYS_FLAG, SEND_TOPIC, SEND_UNIT, SEND_BROKER
};
static const uint8_t PULL_ORDER[RMQ_TEXT_COUNT] = {
    PULL_COMMIT, PULL_GROUP, PULL_TYPE, PULL_COUNT, PULL_QUEUE_ID, PULL_OFFSET, PULL_VERSION, PULL_EXPRESSION,
    PULL_SUSPEND, PULL_SYS_FLAG, PULL_TOPIC, 11, 12, 13
};

static void hash_bytes(sha1 *hash, const uint8_t *at, size_t length)
{
    const size_t buffered = hash->length % BLOCK;

    if (length == 0)
        return;
    hash->length += length;
    if (buffered != 0) {
        const size_t used = length < BLOCK - buffered ? length : BLOCK - buffered;
        memcpy(hash->block + buffered, at, used);
        if (buffered + used < BLOCK)
            return;
        rmq_sha1_blocks(hash->state, hash->block, 1);
        at += used;
        length -= used;
    }
    rmq_sha1_blocks(hash->state, at, length / BLOCK);
    if (length % BLOCK != 0)
        memcpy(hash->block, at + length - length % BLOCK, length % BLOCK);
}

static void finish_hash(sha1 *hash, uint8_t *digest)
{
    static const uint8_t PADDING[BLOCK] = {0x80};
    const uint64_t bits = hash->length * 8;
    uint8_t length[8];

    hash_bytes(hash, PADDING, 1 + (BLOCK + 55 - hash->length % BLOCK) % BLOCK);
    rmq_store_long(length, (int64_t)bits);
    hash_bytes(hash, length, sizeof length);
    for (unsigned i = 0; i < 5; i++)
        rmq_store32(digest + 4 * i, hash->state[i]);
}

/* Continue from the state of another hash that has processed whole blocks. */
static void resume_hash(sha1 *hash, const uint32_t *state, uint64_t length)
{
    memcpy(hash->state, state, sizeof hash->state);
    hash->length = length;
}

void rmq_set_secret(rmq_account *account, const uint8_t *secret, size_t length)
{
    uint8_t key[BLOCK] = {0}, block[BLOCK];
    sha1 hash;

    if (length > BLOCK) {
        resume_hash(&hash, INITIAL_STATE, 0);
        hash_bytes(&hash, secret, length);
        finish_hash(&hash, key);
    } else {
        memcpy(key, secret, length);
    }
    memcpy(account->inner, INITIAL_STATE, sizeof account->inner);
    memcpy(account->outer, INITIAL_STATE, sizeof account->outer);
    for (unsigned i = 0; i < BLOCK; i++)
        block[i] = key[i] ^ INNER;
    rmq_sha1_blocks(account->inner, block, 1);
    for (unsigned i = 0; i < BLOCK; i++)
        block[i] = key[i] ^ OUTER;
    rmq_sha1_blocks(account->outer, block, 1);
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

    resume_hash(&hash, account->inner, BLOCK);
    for (size_t i = 0; i < count; i++)
        hash_bytes(&hash, pieces[i].at, pieces[i].length);
    finish_hash(&hash, digest);
    resume_hash(&hash, account->outer, BLOCK);
    hash_bytes(&hash, digest, DIGEST);
    finish_hash(&hash, digest);
    rmq_put_base64(text, digest, DIGEST);
}

/* Collect the texts in the order of their names. Returns 0 if one of them was signed in another form. */
static int collect_texts(const rmq_request *request, rmq_slice properties, rmq_slice *pieces)
{
    const uint8_t *const order = request->code == 10 ? SEND_ORDER : request->code == 11 ? PULL_ORDER : NULL;

    for (unsigned i = 0; i < RMQ_TEXT_COUNT; i++) {
        const unsigned number = order != NULL ? order[i] : i;
        const rmq_text text = request->texts[number];
        const int unescaped = number == SEND_PROPERTIES && properties.at != NULL;
        if (!unescaped && (text.non_ascii || text.escaped))
            return 0;
        pieces[i] = unescaped ? properties : (rmq_slice){text.at, text.length};
    }
    return 1;
}

int rmq_is_authorized(const rmq_core *core, const rmq_request *request, rmq_slice properties, uint64_t accounts)
{
    const rmq_text signature = request->signature, key = request->access_key;
    rmq_slice pieces[RMQ_TEXT_COUNT + 2];
    uint8_t text[RMQ_SIGNATURE_LENGTH];
    unsigned differing = 0;

    if (!core->acl_enabled)
        return RMQ_OK;
    pieces[0] = (rmq_slice){key.at, key.length};
    const int number = find_account(core, key);
    if (number < 0 || !(accounts >> number & 1u) || request->other_fields || signature.length != RMQ_SIGNATURE_LENGTH
        || !collect_texts(request, properties, pieces + 1))
        return RMQ_NEEDS_PYTHON;
    pieces[RMQ_TEXT_COUNT + 1] = (rmq_slice){request->body, (size_t)request->body_length};
    rmq_sign(&core->accounts[number], pieces, RMQ_TEXT_COUNT + 2, text);
    for (unsigned i = 0; i < RMQ_SIGNATURE_LENGTH; i++)
        differing |= text[i] ^ signature.at[i];
    return differing == 0 ? RMQ_OK : RMQ_NEEDS_PYTHON;
}
