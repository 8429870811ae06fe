/* Hash tables by name (FNV-1a, open addressing): the topics and readers of the fast path. */
#include <string.h>

#include "rmqpy_native.h"

rmq_slot *rmq_find_slot(const rmq_table *table, const uint8_t *key, size_t length)
{
    uint32_t hash = 2166136261u;

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ key[i]) * 16777619u;
    for (uint32_t place = hash & table->mask;; place = (place + 1) & table->mask) {
        rmq_slot *const slot = &table->slots[place];
        if (slot->key == NULL) {
            slot->hash = hash;
            return slot;
        }
        if (slot->hash == hash && slot->key_length == length && memcmp(slot->key, key, length) == 0)
            return slot;
    }
}
